"""CallLog of exposed methods: made at most once, and made for certain unless they may have been made already."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from perdure.actors import Agent, KillPoint, RemoteError, exposed
from perdure.actors.link import call_log
from perdure.actors.link.call_log import ANSWERS_KEPT, CallLog
from perdure.actors.link.messages import Call, MakeCall, Reply
from perdure.actors.link.wire import PeerFrame, decode_all, messages_in
from perdure.actors.sim_world.simulation import Weather
from perdure.actors.supervisor.calls import CallRouter, Calls
from perdure.actors.supervisor.sessions import PeerSession, Sessions
from perdure.ledger import OutcomeUnknown, View, last_end, restore, unpack
from perdure.ledger.activation import LIVES_KEPT
from perdure.ledger.facts import AgentActivated, AgentLost, AgentReleased, AgentStopped, RunCleared, RunSucceeded
from perdure.ledger.snapshot import meta_of
from perdure.ledger.store.store import Boot
from tests.kit import ROOMY, Ledger, Stage, address, asked, begun, child, placed, play, staged

SLEPT_S = 30.0


RAIN = replace(Weather.calm(), lost=0.05, doubled=0.1, late=0.1, supervisor_dies=0.04, host_dies=0.01)


class Counting(Agent):
    """Counts how often it was entered, on disk."""

    @exposed
    async def count(self, ms: float = 0) -> int:
        self.state["count"] = self.state.get("count", 0) + 1
        await asyncio.sleep(ms / 1000)
        return int(self.state["count"])

    @exposed(repeatable=True)
    async def count_again(self, ms: float) -> int:
        self.state["count"] = self.state.get("count", 0) + 1
        await asyncio.sleep(ms / 1000)
        return int(self.state["count"])

    @exposed(repeatable=True)
    async def counted(self) -> int:
        return int(self.state.get("count", 0))


class Sullen(Agent):
    """Does not come up."""

    async def on_start(self) -> None:
        raise RuntimeError("not today")

    @exposed
    async def anything(self) -> None:
        """Never entered."""


async def never_lived(stage: Stage) -> None:
    """The call wakes the agent for the first time."""


async def sleeps(stage: Stage) -> None:
    """It has lived before, and sleeps."""
    await stage.call(Counting, "counted")
    await stage.until(lambda: not stage.host_of(address(Counting, "p")))
    await asyncio.sleep(SLEPT_S)


async def is_awake(stage: Stage) -> None:
    """It is awake."""
    await stage.call(Counting, "counted")


async def was_lost(stage: Stage) -> None:
    """It died a while ago."""
    await stage.call(Counting, "counted")
    stage.kill_host_of(address(Counting, "p"))
    await asyncio.sleep(SLEPT_S)


BEFORE = [never_lived, sleeps, is_awake, was_lost]


def test_a_host_says_that_an_agent_woke_with_the_answer_of_the_call_that_woke_it() -> None:
    frames: list[list[str]] = []

    async def story(stage: Stage) -> None:
        await sleeps(stage)
        sessions = stage.laboratory.supervisors[-1].sessions
        exchange = sessions.exchange

        async def noted(frame: bytes) -> bytes:
            said = PeerFrame(*unpack(frame))
            if not said.peer_id.startswith("client"):
                frames.append([type(each).__name__ for each in decode_all(said.messages)])
            return await exchange(frame)

        vars(sessions)["exchange"] = noted
        await stage.call(Counting, "count", 0.5)
        del vars(sessions)["exchange"]

    play(story)
    assert [said for said in frames if "Awake" in said or "CallAnswered" in said] == [["Awake", "CallAnswered"]]


@pytest.mark.parametrize("before", BEFORE, ids=lambda each: each.__name__)
def test_whenever_the_supervisor_dies_a_call_is_made_exactly_once(before: Callable[[Stage], Awaitable[None]]) -> None:
    async def story(delay_ms: float, stage: Stage) -> None:
        await before(stage)
        calling = asyncio.create_task(stage.call(Counting, "count", 30))
        await asyncio.sleep(delay_ms / 1000)
        stage.simulation.kill("supervisor")
        assert await calling == 1
        assert await stage.call(Counting, "counted") == 1

    for delay_ms in (0, 0.2, 0.5, 1, 1.5, 2, 3, 4, 5, 7, 10, 15, 25, 35, 45):
        play(partial(story, delay_ms))


@pytest.mark.parametrize("before", [never_lived, sleeps, was_lost], ids=lambda each: each.__name__)
def test_wherever_the_supervisor_dies_a_call_is_made_exactly_once(before: Callable[[Stage], Awaitable[None]]) -> None:
    deaths = 0

    async def story(visit: int, stage: Stage) -> None:
        nonlocal left
        await before(stage)
        left = visit
        assert await stage.call(Counting, "count", 30) == 1
        left = 0
        assert await stage.call(Counting, "counted") == 1

    def rule(_stage: Stage, process: str, _point: KillPoint, _detail: str) -> bool:
        nonlocal left, deaths
        dies = process == "supervisor" and left == 1
        left -= process == "supervisor" and left > 0
        deaths += dies
        return dies

    for visit in (1, 2, 3, 4):
        left = 0
        play(partial(story, visit), kill_when=rule)
    assert deaths == 4


async def test_a_call_that_is_made_while_no_supervisor_lives_is_made_when_one_is_back(stage: Stage) -> None:
    await sleeps(stage)
    stage.simulation.kill("supervisor")
    assert await stage.call(Counting, "count") == 1


@pytest.mark.parametrize("before", BEFORE, ids=lambda each: each.__name__)
def test_when_its_host_dies_too_a_call_may_be_refused_and_is_never_made_twice(
    before: Callable[[Stage], Awaitable[None]],
) -> None:
    outcomes: list[str] = []

    async def story(delay_ms: float, stage: Stage) -> None:
        await before(stage)
        calling = asyncio.create_task(stage.call(Counting, "count", 50))
        await asyncio.sleep(delay_ms / 1000)
        stage.simulation.kill("supervisor")
        for host in stage.simulation.live_hosts():
            stage.simulation.kill(host)
        try:
            outcomes.append(str(await calling))
        except OutcomeUnknown:
            outcomes.append("refused")
        assert await stage.call(Counting, "counted") <= 1

    for delay_ms in (0, 1, 2, 5, 20, 45, 60, 100):
        play(partial(story, delay_ms))
    assert "1" in outcomes
    assert set(outcomes) <= {"1", "refused"}


async def test_a_call_whose_answer_was_lost_with_its_agent_and_its_supervisor_is_refused_and_not_made_again(
    stage: Stage,
) -> None:
    calling = asyncio.create_task(stage.call(Counting, "count", 50))
    await stage.until(lambda: bool(stage.host_of(address(Counting, "p"))))
    host = stage.host_of(address(Counting, "p"))
    stage.simulation.partition("client", 15_000)
    await stage.until(lambda: not stage.host_of(address(Counting, "p")))
    stage.simulation.kill("supervisor")
    stage.simulation.kill(host)
    with pytest.raises(OutcomeUnknown, match="may or may not have taken effect"):
        await calling
    assert await stage.call(Counting, "counted") == 1


async def test_a_call_that_a_death_cut_off_says_how_the_process_ended(stage: Stage) -> None:
    calling = asyncio.create_task(stage.call(Counting, "count", 5_000))
    await stage.until(lambda: bool(stage.host_of(address(Counting, "p"))))
    await asyncio.sleep(1)
    stage.kill_host_of(address(Counting, "p"))
    with pytest.raises(OutcomeUnknown) as refused:
        await calling
    assert refused.value.cause.startswith("its host died (")
    assert str(refused.value).endswith(f"Of the agent's last life is known: {refused.value.cause}")
    known = await stage.client.ask("agent", address(Counting, "p"))
    assert (known["lost_by"], known["losses"]) == (refused.value.cause, 1)


@staged(limits=replace(ROOMY, hosts_max=1))
async def test_an_answer_that_was_lost_with_the_supervisor_is_given_again_by_a_host_that_lives(stage: Stage) -> None:
    calling = asyncio.create_task(stage.call(Counting, "count", 50))
    await stage.until(lambda: bool(stage.host_of(address(Counting, "p"))))
    stage.simulation.partition("client", 15_000)
    await stage.until(lambda: not stage.host_of(address(Counting, "p")))
    stage.simulation.kill("supervisor")
    assert await calling == 1
    assert await stage.call(Counting, "counted") == 1


@pytest.mark.parametrize("seed", range(12))
def test_in_no_weather_is_a_call_made_twice_or_an_answer_given_for_nothing(seed: int) -> None:
    answered = refused = 0

    async def one(stage: Stage, number: int) -> None:
        nonlocal answered, refused
        await asyncio.sleep(number * 0.9)
        try:
            await stage.call(Counting, "count", 40 * (number % 5))
            answered += 1
        except OutcomeUnknown:
            refused += 1

    async def story(stage: Stage) -> None:
        await asyncio.gather(*(one(stage, number) for number in range(25)))
        stage.simulation.heal()
        assert answered <= await stage.call(Counting, "counted") <= answered + refused

    play(story, seed=seed, weather=RAIN)
    assert answered + refused == 25
    assert answered


@staged(limits=replace(ROOMY, idle_ms=1500))
async def test_a_call_that_comes_too_late_for_a_life_that_went_to_sleep_is_made_in_the_next_one(stage: Stage) -> None:
    await is_awake(stage)
    host = stage.host_of(address(Counting, "p"))
    stage.simulation.partition(host, 1_900)  # until after it went to sleep
    await asyncio.sleep(1)
    assert await stage.call(Counting, "count") == 1


@pytest.mark.shows(chat_recovery="C-0938")
@pytest.mark.parametrize(("method", "outcome"), [("count", "refused"), ("count_again", "2")])
def test_a_call_whose_agent_is_stopped_is_refused_or_made_again(method: str, outcome: str) -> None:
    async def story(stage: Stage) -> str:
        calling = asyncio.create_task(stage.call(Counting, method, 3_000))
        await stage.until(
            lambda: bool(stage.laboratory.hosts) and any(h.tenants for h in stage.laboratory.hosts.values())
        )
        await asyncio.sleep(1)
        (tenant,) = (each for host in stage.laboratory.hosts.values() for each in host.tenants.values())
        await asyncio.create_task(tenant.stop())
        try:
            return str(await calling)
        except OutcomeUnknown:
            return "refused"

    assert play(story) == outcome


async def test_what_on_start_raises_is_what_a_call_that_woke_the_agent_is_told(stage: Stage) -> None:
    with pytest.raises(RemoteError, match="not today"):
        await stage.call(Sullen, "anything")


# ---------------------------------------------------------------- what a life of the supervisor remembers


class Switchboard:
    """The calls of one life of the supervisor. The agent `a@t` is awake in its first life, on `h1`."""

    def __init__(self) -> None:
        self.ledger = Ledger().given(AgentActivated("a@t", 1, "h1"))
        self.sessions = Sessions()
        self.calls = Calls(self.ledger.view, self.sessions, CallRouter(self.ledger.view, lambda _agent: False))
        for peer in ("client", "h1", "h2"):
            self.sessions.by_peer[peer] = PeerSession(peer, 1)

    def ask(self, *, repeatable: bool = False, again: bool = False, heard: int = 1) -> Switchboard:
        """The client asks for the call `c`."""
        asked = Call("a@t", "m", b"", None, repeatable, "", heard, again, "")
        self.calls.begin(self.sessions.by_peer["client"], "c", asked)
        return self

    def next_life(self) -> Switchboard:
        """The agent leaves its host, and wakes on the other one."""
        self.ledger.given(AgentReleased("a@t", 1), AgentActivated("a@t", 2, "h2"))
        return self

    def said(self, peer: str) -> list[Any]:
        """What is said to somebody once calls were handed over."""
        self.calls.hosts_changed()
        self.calls.seen(self.ledger.view.touched)
        self.calls.hand_over()
        return messages_in(self.sessions.by_peer[peer].link.take()[1])


def handed(life: int = 1, *, repeatable: bool = False, lost: bool = False) -> MakeCall:
    return MakeCall("a@t", life, "c", "m", b"", repeatable, lost)


def test_a_call_that_is_asked_for_again_is_handed_over_once_and_answered_once() -> None:
    board = Switchboard().ask()
    assert board.said("h1") == [handed()]
    assert board.ask(again=True).said("h1") == []
    board.calls.answered("c", ok=True, value=b"1")
    board.calls.answered("c", ok=True, value=b"1")
    assert board.said("client") == [Reply("c", ok=True, value=b"1")]


@pytest.mark.parametrize(("heard", "lost"), [(1, True), (2, False)])
def test_a_call_that_is_asked_of_another_supervisor_life_may_have_been_begun_by_a_life_that_ended_since(
    heard: int, lost: bool
) -> None:
    board = Switchboard().next_life().ask(again=True, heard=heard)
    assert board.said("h2") == [handed(2, lost=lost)]


def test_a_call_that_the_present_life_may_have_begun_is_asked_of_it_and_is_not_made_by_another() -> None:
    assert Switchboard().ask(again=True).said("h1") == [handed()]
    assert Switchboard().ask(again=True).next_life().said("h2") == [handed(2, lost=True)]


def test_what_was_handed_to_a_host_whose_session_is_over_may_have_been_begun_by_that_life_alone() -> None:
    for moves, expected in ((False, handed()), (True, handed(2, lost=True))):
        board = Switchboard().ask()
        assert board.said("h1") == [handed()]
        board.calls.session_began("h1")
        assert (board.next_life().said("h2") if moves else board.said("h1")) == [expected]


@pytest.mark.parametrize("repeatable", [False, True])
@pytest.mark.parametrize("end", ["cut off", "host gone"])
def test_a_call_that_was_begun_and_will_not_be_answered_is_made_again_only_if_it_may_be(
    repeatable: bool, end: str
) -> None:
    board = Switchboard().ask(repeatable=repeatable)
    assert board.said("h1") == [handed(repeatable=repeatable)]
    if end == "cut off":
        board.calls.cut_off("c")
    else:
        del board.ledger.view.hosts["h1"]
    board.next_life()
    if repeatable:
        assert board.said("h2") == [handed(2, repeatable=True)]
    else:
        assert [board.said("h2"), [said.ok for said in board.said("client")]] == [[], [False]]


def test_a_call_that_came_too_late_for_one_life_is_handed_to_the_next() -> None:
    board = Switchboard().ask()
    assert board.said("h1") == [handed()]
    board.calls.astray("c")
    assert board.next_life().said("h2") == [handed(2)]


def test_a_life_that_is_told_to_stop_is_handed_no_call() -> None:
    board = Switchboard().ask()
    board.ledger.given(AgentStopped("a@t"))
    assert board.said("h1") == []
    assert board.next_life().said("h2") == [handed(2)]


# ---------------------------------------------------------------- what a host remembers


def test_a_call_under_way_is_never_forgotten_and_an_old_answer_is_only_known_to_have_been_given() -> None:
    calls = CallLog()
    calls.begin("long")
    for number in range(ANSWERS_KEPT + 1):
        calls.begin(f"c{number}")
        calls.answer(f"c{number}", True, number)
    first, last, long = calls.find("c0"), calls.find(f"c{ANSWERS_KEPT}"), calls.find("long")
    assert first is not None
    assert (first.is_over, first.answer) == (True, None)
    assert last is not None
    assert last.answer == (True, ANSWERS_KEPT)
    assert long is not None
    assert not long.is_over
    assert calls.find("never") is None


def test_so_many_calls_are_known_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_log, "CALLS_KEPT", 100)
    calls = CallLog()
    for number in range(101):
        calls.begin(f"c{number}")
        calls.answer(f"c{number}", True, None)
    assert calls.find("c0") is None
    assert calls.find("c1") is not None


# ---------------------------------------------------------------- what the ledger remembers


def test_the_end_of_a_life_is_known_by_the_fact_that_tells_of_it() -> None:
    ledger = Ledger().given(AgentActivated("a@t", 1, "h1"), AgentReleased("a@t", 1), AgentActivated("b@t", 2, "h1"))
    assert [last_end(ledger.view, agent) for agent in ("a@t", "b@t", "c@t")] == [2, 0, 0]
    assert last_end(ledger.given(AgentLost("b@t", 2, 0)).view, "b@t") == 4


def test_of_many_ends_the_latest_are_known_and_nothing_is_certain_before_the_last_that_was_forgotten() -> None:
    ledger = Ledger()
    for number in range(LIVES_KEPT + 1):
        agent = f"a{number}@t"
        ledger.given(AgentActivated(agent, number + 1, "h1"), AgentReleased(agent, number + 1))
    assert [last_end(ledger.view, agent) for agent in ("a1@t", "a0@t", "never@t")] == [4, 2, 2]


def test_a_child_of_a_run_also_lived_in_its_attempts_of_which_only_the_first_is_sure() -> None:
    ledger = Ledger().given(asked())
    assert last_end(ledger.view, child()) == 0
    assert last_end(ledger.given(placed(), begun()).view, child()) == 0
    ended = ledger.given(RunSucceeded("r", 1, None, "", released=True)).view
    assert last_end(ended, child()) == ended.seq
    assert last_end(ledger.given(RunCleared("r")).view, "somebody else@t") == ended.seq


def test_ends_of_lives_outlive_a_boot_and_a_snapshot_that_says_nothing_of_them_makes_nothing_certain() -> None:
    view = Ledger().given(AgentActivated("a@t", 1, "h1"), AgentReleased("a@t", 1), asked()).view
    again = restore(Boot(meta_of(view), [], [], []))
    assert [last_end(again, agent) for agent in ("a@t", "b@t")] == [2, 0]
    assert last_end(View(), "a@t") == 0
