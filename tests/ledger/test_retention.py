"""Who still needs an ended run: each reason by itself keeps it."""

from __future__ import annotations

import pytest

from perdure.ledger import Fact, Retire
from perdure.ledger.facts import (
    AgentActivated,
    AgentLost,
    AgentReleased,
    AlarmSet,
    MailFailed,
    MailPosted,
    RunAborted,
    RunCleared,
    RunCompleted,
    RunInterrupted,
)
from tests.kit import TYPE, Ledger, asked, begun, child, placed


def done(run_id: str = "r", *, parent: str = "", **options: object) -> list[Fact]:
    """A run was requested and has ended, and its child has left."""
    end = RunCompleted(run_id, 1, b"\x01", "", released=True, sequence=3)
    return [asked(run_id, parent=parent, **options), placed(run_id), begun(run_id), end]


def retired(*facts: Fact, called: list[str] | None = None) -> list[str]:
    """Which runs go, of those that these facts speak of."""
    ledger = Ledger().given(*facts)
    made = ledger.when(Retire(list(ledger.view.runs), called or []))
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
    assert Ledger().when(Retire(["nobody"])) == []
    assert TYPE in child("r")
