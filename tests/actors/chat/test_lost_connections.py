"""The connection to the provider breaks at each event of each request of a turn: the answer is whole, and each call happens once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.actors import Client
from perdure.actors.sim_world.weather import Span, Weather
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Outside, ask, play
from tests.actors.chat.talk import tell
from tests.kit import some

REQUESTS = (1, 2, 3)
EVENTS = 14
SILENT = [FaultKind.RESET, FaultKind.HANG_UP, FaultKind.END, FaultKind.ERROR]


def _faults(kind: FaultKind) -> list[tuple[int, Fault]]:
    """Faults of a kind at every third event; each silent kind begins at another one, so that together they have been at every event."""
    first = SILENT.index(kind) % 3 if kind in SILENT else 0
    return [(request, Fault(kind=kind, event=place)) for request in REQUESTS for place in range(first, EVENTS, 3)]


def test_the_places_are_all_events_of_all_requests() -> None:
    places = {(request, fault.event) for kind in SILENT for request, fault in _faults(kind)}
    assert len(places) == len(REQUESTS) * EVENTS


@pytest.mark.shows(chat_recovery="C-0483", transport_recovery="2 63 A1 B12")
@pytest.mark.parametrize("kind", some(2, SILENT))
def test_a_lost_connection_is_recovered_in_silence(kind: FaultKind) -> None:
    """Who watches sees one attempt and its end, wherever the connection broke (seed 004, cases 1-4, 21, 63, A1, A9)."""
    for request, fault in _faults(kind):
        Outside.begin(SCRIPT, FaultPlan.at({request: fault}))
        result, listeners, _ = play("sum")
        told = f"{kind} at event {fault.event} of request {request}"
        assert result.text == WHOLE, f"{told}: {result}"
        assert [each.ends for each in listeners] == [["on_done"]], told
        assert set(Outside.effects.values()) == {1}, f"{told}: {Outside.effects}"
        assert Outside.provider.counters().illegal == 0, told


@pytest.mark.shows(chat_recovery="C-0494 C-1042 C-1121", transport_recovery="B5")
def test_a_stall_ends_the_attempt_for_those_who_watch_and_the_turn_goes_on() -> None:
    """A silent stream is an interruption like a death: told once, and never as done or as an error (seed 001, C-0494)."""
    for request, fault in _faults(FaultKind.STALL)[::3]:
        Outside.begin(SCRIPT, FaultPlan.at({request: fault}))
        result, listeners, _ = play("sum")
        told = f"stall at event {fault.event} of request {request}"
        assert result.text == WHOLE, f"{told}: {result}"
        assert [each.ends for each in listeners] in ([["on_interrupted"], ["on_done"]], [["on_done"]]), told
        assert set(Outside.effects.values()) == {1}, told
        assert Outside.provider.counters().illegal == 0, told


@pytest.mark.shows(transport_recovery="27 B6")
@pytest.mark.parametrize(("status", "after"), [(429, "3"), (503, None), (500, None), (529, None)])
def test_a_passing_refusal_is_waited_out(status: int, after: str | None) -> None:
    """A provider that is busy is asked again, when it says and not before (cases 26, 27, A10)."""
    Outside.begin(SCRIPT, FaultPlan.at({2: Fault(kind=FaultKind.STATUS, status=status, retry_after=after)}))
    result, _, _ = play("sum")
    assert result.text == WHOLE
    first, second = Outside.provider.log()[1:3]
    assert round(second.at_ms - first.at_ms, 6) >= (3_000 if after else 1_000)


def test_a_provider_that_asks_for_a_day_is_not_asked_again_and_its_wish_is_told() -> None:
    day = Fault(kind=FaultKind.STATUS, status=429, retry_after="86400", type="rate_limit_error", message="Rate limit")
    Outside.begin(SCRIPT, FaultPlan.at(dict.fromkeys(range(1, 20), day)))
    result, _, _ = play("words")
    assert (result.status, result.reason) == ("error", "http")
    assert "429: Rate limit; it asks to wait for 24 h, and a turn waits for 1 h at most" in result.error
    assert len(Outside.provider.log()) == 1


@pytest.mark.shows(transport_recovery="26 29")
@pytest.mark.parametrize("away", [Fault(kind=FaultKind.REFUSED), Fault(kind=FaultKind.STATUS, status=503)])
def test_a_provider_that_stays_away_ends_the_turn_with_a_notice(away: Fault) -> None:
    """Five recoveries, and no more; what had been done stays, and the notice says that something had (cases 26, 29, 45, 57, 61)."""
    Outside.begin(SCRIPT, FaultPlan.at(dict.fromkeys(range(2, 20), away)))
    result, listeners, _ = play("sum")
    assert (result.status, result.reason) == ("error", "recovery_exhausted")
    assert "already been carried out" in result.error
    assert listeners[0].ends == ["on_error"]
    notice = result.message["parts"][-1]
    assert notice["type"] == "data-notice"
    assert notice["data"]["sideEffects"] is True
    if away.kind is FaultKind.STATUS:
        assert len(Outside.provider.log()) == 1 + 6, "the first request, and six tries at the second"


@pytest.mark.shows(transport_recovery="A19")
def test_clocks_that_jump_by_hours_cost_no_patience() -> None:
    """A laptop that sleeps: a lost connection is recovered as ever, and nothing is given up for its age (A19)."""
    sleepy = replace(Weather.calm(), clock_jump_every_ms=300.0, clock_jump_ms=Span(7_200_000, 7_200_000))
    plan = FaultPlan.at(dict.fromkeys((1, 3, 5), Fault(kind=FaultKind.RESET, event=3)))

    async def story(client: Client) -> None:
        result, listeners = await ask(client, Adder, "sum")
        assert result.text == WHOLE
        assert [each.ends for each in listeners] == [["on_done"]]

    heard = tell(story, plan=plan, weather=sleepy)
    assert heard[-1].at_ms - heard[0].at_ms > 7_200_000
    assert [event.type for event in heard].count("chat:transport:recovery") == 3
    assert set(Outside.effects.values()) == {1}


def test_a_refusal_for_good_stops_at_once_and_says_why() -> None:
    """A wrong key is nothing that waiting mends; the results of tools stay in the transcript (cases 3, 37, A16)."""
    Outside.begin(
        SCRIPT,
        FaultPlan.at({2: Fault(kind=FaultKind.STATUS, status=401, type="invalid_request_error", message="Wrong key")}),
    )
    result, listeners, _ = play("sum")
    assert result.status == "error"
    assert "Wrong key" in result.error
    assert listeners[0].ends == ["on_error"]
    outputs = [part.get("output") for part in result.message["parts"] if part.get("toolName") == "add"]
    assert outputs == ["2", "3", "4"]
    assert len(Outside.provider.log()) == 2
