"""Who still needs an ended run: each reason by itself keeps it."""

from __future__ import annotations

import pytest

from perdure.ledger import ExpireRuns, Fact
from perdure.ledger.facts import (
    AgentActivated,
    AgentLost,
    AgentReleased,
    AlarmSet,
    MailDelivered,
    MailFailed,
    MailPosted,
    RunAborted,
    RunCleared,
    RunInterrupted,
    RunSucceeded,
)
from tests.kit import TYPE, Ledger, asked, begun, child, placed


def done(run_id: str = "r", *, parent: str = "", **options: object) -> list[Fact]:
    """A run was requested and has ended, and its child has left."""
    end = RunSucceeded(run_id, 1, b"\x01", "", released=True, sequence=3)
    return [asked(run_id, parent=parent, **options), placed(run_id), begun(run_id), end]


LETTER = MailPosted("m", child(), "", "hear", b"")
HEARD = MailDelivered(child(), ["m"], 4)


def retired(*facts: Fact, called: list[str] | None = None) -> list[str]:
    """Which runs go, of those that these facts speak of."""
    ledger = Ledger().given(*facts)
    made = ledger.when(ExpireRuns(list(ledger.view.runs), called or []))
    return [fact.run_id for fact in made if isinstance(fact, RunCleared)]


def test_a_run_that_nobody_needs_goes_with_the_runs_of_its_child() -> None:
    assert retired(*done("r"), *done("inner", parent=child("r"))) == ["r", "inner"]
    below = f"{child('r')}>kid@m:T"
    assert retired(*done("r"), *done("inner", parent=below)) == ["r", "inner"]


@pytest.mark.parametrize(
    "more",
    [
        [asked("live", parent=child("r"))],
        [asked("live", parent=f"{child('r')}>kid@m:T")],
        [asked("soft", parent=child("r")), RunInterrupted("soft", "no-progress", None, "silent")],
        [AgentActivated(child("r"), 2, "h1")],
        [AgentActivated(child("r"), 2, "h1"), AgentLost(child("r"), 2, 10)],
        [AgentActivated(f"{child('r')}>kid@m:T", 2, "h1")],
        [AgentActivated(child("r"), 2, "h1"), AlarmSet(child("r"), 10**13), AgentReleased(child("r"), 2, 4)],
        [AgentActivated(child("r"), 2, "h1"), AgentReleased(child("r"), 2, 4)],
        [MailPosted("m", child("r"), "", "method", b"\x90")],
        [LETTER, AgentActivated(child("r"), 2, "h1"), HEARD, AgentReleased(child("r"), 2, 4)],
        [LETTER, MailFailed("m", "raised", None)],
    ],
    ids=[
        "live child",
        "live child of a sub-agent",
        "interrupted child",
        "awake",
        "lost",
        "sub-agent awake",
        "alarm",
        "called",
        "mail",
        "written to",
        "parked letter",
    ],
)
def test_a_run_of_which_something_goes_on_stays(more: list[Fact]) -> None:
    assert "r" not in retired(*done("r"), *more)


def test_a_run_whose_child_was_called_in_an_earlier_life_stays() -> None:
    assert retired(*done("r"), called=[child("r")]) == []
    assert retired(*done("r"), *done("inner", parent=child("r")), called=[child("inner")]) == []


def test_a_child_that_was_woken_for_the_end_of_its_own_run_is_no_agent_of_its_own() -> None:
    wake = [AgentActivated(child("r"), 2, "h1")]
    inner = done("inner", parent=child("r"), detached=True, on_finish="on_done")
    ledger = Ledger().given(*done("r"), *inner, *wake)
    assert not ledger.view.agents[child("r")].called


def test_a_child_that_was_woken_because_its_host_had_died_is_no_agent_of_its_own_unless_a_letter_waited() -> None:
    *before, _ = done("r")
    end = RunSucceeded("r", 1, b"\x01", "", released=False, sequence=3)
    lost = [end, AgentReleased(child("r"), 1), AgentLost(child("r"), 1, 10)]
    again = [AgentActivated(child("r"), 2, "h1"), AgentReleased(child("r"), 2, 4)]
    assert retired(*before, *lost, *again) == ["r"]
    assert retired(*before, *lost, LETTER, again[0], HEARD, again[1]) == []


@pytest.mark.parametrize("below", ["", ">kid@m:T"])
def test_a_letter_that_came_during_the_run_keeps_it_while_it_is_parked_and_not_when_it_was_handled(below: str) -> None:
    agent = child("r") + below
    *before, end = done("r")
    before.append(MailPosted("m", agent, "", "hear", b""))
    after = [AgentReleased(agent, 2, 3)] if below else []
    before += [AgentActivated(agent, 2, "h1")] if below else []
    assert retired(*before, MailFailed("m", "raised", None), *after, end) == []
    assert retired(*before, MailDelivered(agent, ["m"], 2), *after, end) == ["r"]


@pytest.mark.parametrize("is_by_letter", [False, True])
def test_a_child_that_was_called_or_written_to_stays_when_it_was_woken_for_the_end_of_its_own_run_since(
    is_by_letter: bool,
) -> None:
    inner = done("inner", parent=child("r"), detached=True, on_finish="on_done")
    before = [LETTER] if is_by_letter else []
    visited = [
        *before,
        AgentActivated(child("r"), 2, "h1"),
        *([HEARD] if before else []),
        AgentReleased(child("r"), 2, 4),
    ]
    told = [
        AgentActivated(child("r"), 3, "h1"),
        MailDelivered(child("r"), ["inner!finish"], 5),
        AgentReleased(child("r"), 3, 5),
    ]
    assert retired(*done("r"), *inner, *told) == ["r", "inner"], "nobody but its own run"
    assert retired(*done("r"), *visited, *inner, *told) == ["inner"]
    assert "r" not in retired(*done("r"), *inner, LETTER, *told), "both waited for it"


@pytest.mark.parametrize("parked", [False, True])
def test_a_run_whose_end_was_not_told_stays(parked: bool) -> None:
    facts = done("r", parent="p@m:P", detached=True, on_finish="on_done")
    if parked:
        facts.append(MailFailed("r!finish", "raised", None))
    assert retired(*facts) == []


def test_a_run_whose_parent_may_ask_for_it_again_stays() -> None:
    outer = [asked("outer", parent=""), placed("outer")]
    assert retired(*outer, *done("inner", parent=child("outer"))) == []
    assert retired(*outer, *done("inner", parent=f"{child('outer')}>kid@m:T")) == []


def test_what_is_not_over_or_not_known_stays() -> None:
    assert retired(asked("r", parent=""), placed("r"), RunAborted("r", "enough")) == [], "its child is still there"
    assert retired(asked("r", parent=""), RunAborted("r", "enough")) == ["r"]
    assert Ledger().when(ExpireRuns(["nobody"])) == []
    assert TYPE in child("r")
