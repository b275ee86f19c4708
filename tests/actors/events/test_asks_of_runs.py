"""What a run asks people, as its events tell it: the same rows as the inbox has."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.actors.events.reducer import RunAsks
from perdure.ledger import Fact, ask_told, frame_of, pack, pack_value, record_fact
from perdure.ledger.facts import (
    AskAnswered,
    AskEscalated,
    AskLapsed,
    AskOpened,
    AskWithdrawn,
    RunAborted,
    RunErrored,
    RunSucceeded,
    UndoBegan,
    UndoPromised,
)
from tests.kit import NOW_MS, Ledger, asked, begun, placed

TO = [["ops", 0], ["managers", NOW_MS + 10], ["board", NOW_MS + 20]]
YES = pack_value("value", True)


def opening(number: int = 1, people: int = 1) -> Fact:
    schema, args = pack({"type": "boolean"}), pack_value("args", {"count": 4})
    return AskOpened("r", number, f"d{number}", "Ship?", schema, args, TO, 1, people, False, "bob", 0, None, "")


def answer(who: str, *, closes: bool, value: bytes = YES, edited: bytes | None = None) -> Fact:
    return AskAnswered("r", 1, f"{who}'s", "d1", who, "rest", value, edited, closes)


STORIES: dict[str, list[Fact]] = {
    "answered": [opening(), answer("ada", closes=True, edited=pack_value("args", {"count": 3}))],
    "by two": [opening(people=2), answer("ada", closes=False), answer("eve", closes=True)],
    "another mind": [
        opening(people=2),
        answer("ada", closes=False, value=pack_value("value", False)),
        answer("ada", closes=False),
    ],
    "expired": [opening(), AskLapsed("r", 1)],
    "withdrawn": [opening(), AskWithdrawn("r", 1)],
    "asked again": [opening(), AskWithdrawn("r", 1), opening()],
    "to others": [opening(), AskEscalated("r", 1, 2), AskEscalated("r", 1, 3)],
    "two": [opening(), opening(2), answer("ada", closes=True)],
    "completed": [opening(), RunSucceeded("r", 1, pack(None), "", True)],
    "failed": [opening(), opening(2), AskLapsed("r", 2), RunErrored("r", 1, "no", True)],
    "aborted": [opening(), RunAborted("r", "enough")],
    "undone": [UndoPromised("r", 1), opening(), UndoBegan("r", 1, "error", "no")],
}


@pytest.mark.parametrize("facts", STORIES.values(), ids=STORIES)
def test_its_events_tell_what_the_inbox_tells(facts: list[Fact]) -> None:
    ledger = Ledger().given(asked("r", parent=""), placed("r"), begun("r"))
    asks, rows = RunAsks(), dict[str, Any]()
    for at, fact in enumerate(facts):
        before = {ask.number: ask for ask in ledger.run("r").asks}
        frame = frame_of(record_fact(ledger.view, fact, NOW_MS + at), ledger.run("r"))
        changed = [] if frame is None else asks.take(frame["event"])
        now = {ask.number: ask for ask in ledger.run("r").asks}
        expected = [ask_told(ledger.run("r"), ask) for number, ask in now.items() if before.get(number) != ask]
        assert changed == expected
        rows |= {row["ask_id"]: row for row in changed}
    run = ledger.run("r")
    assert rows == {row["ask_id"]: row for row in (ask_told(run, ask) for ask in run.asks)}
    assert asks.is_open is bool(run.open_asks)


def test_a_change_of_a_question_that_was_never_told_changes_nothing() -> None:
    asks = RunAsks()
    assert asks.take({"kind": "ask-changed", "ask_id": "r:7", "status": "expired", "at_ms": 1}) == []
    assert asks.take({"kind": "finished", "summary": "", "at_ms": 1}) == []
    assert not asks.is_open
