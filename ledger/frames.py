"""Events: the facts of a run as its followers see them.

A run's facts are its event stream. The fold numbers them 0, 1, 2, … over all attempts and lives of the supervisor. So a follower that has
everything up to a number can be given the rest, and live and replayed events carry the same numbers (spec W-30).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.ledger.asks import answer_told, ask_id, ask_told
from perdure.ledger.codec import decode, unpack
from perdure.ledger.facts import (
    AskAnswered,
    AskEscalated,
    AskLapsed,
    AskOpened,
    AskWithdrawn,
    AttemptStarted,
    ChunkEmitted,
    Fact,
    MilestoneReached,
    ProgressReported,
    RunAborted,
    RunCleared,
    RunErrored,
    RunInterrupted,
    RunReattached,
    RunRequested,
    RunRetried,
    RunSucceeded,
    UndoBegan,
)
from perdure.ledger.run import GivenAnswer, Run, opened
from perdure.ledger.status import AskStatus
from perdure.ledger.store.store import FactRow
from perdure.ledger.values import Kept, shown_input


def frame_of(row: FactRow, run: Run, *, replay: bool = False) -> dict[str, object] | None:
    """The frame of a fact's row, or None if the fact is no event. `run` is that of the fact, however it stands by now."""
    if row.frame is None:
        return None
    fact, tool_call = decode(row.kind, row.body), run.options.get("tool_call")
    frame: dict[str, object] = {"type": "agent-tool-event", "run_id": row.subject, "sequence": row.frame}
    if tool_call:
        frame["parent_tool_call_id"] = tool_call
    if replay:
        frame["replay"] = True
    if isinstance(fact, AskOpened):
        event = {"kind": "asked", "ask": ask_told(run, opened(fact, row.seq, row.at_ms)), "at_ms": row.at_ms}
    else:
        event = _EVENTS[type(fact)](fact, row.at_ms)
    frame["event"] = event
    if "live_data" in event:
        data = event.pop("live_data")
        event |= {} if replay else {"data": data}
    return frame


def _started(fact: RunRequested, at_ms: int) -> dict[str, object]:
    options = fact.options
    event = {
        "kind": "started",
        "agent_type": fact.agent_type,
        "order": options.get("order", 0),
        "parent": fact.parent,
        "at_ms": at_ms,
    }
    shown = {"input_preview": shown_input(options, fact.input), "display": options.get("display")}
    return event | {name: value for name, value in shown.items() if value is not None}


def _milestone(fact: MilestoneReached, at_ms: int) -> dict[str, object]:
    return {
        "kind": "milestone",
        "name": fact.name,
        "milestone_sequence": fact.number,
        "at_ms": at_ms,
        **unpack(fact.body),
    }


def _finished(fact: RunSucceeded, at_ms: int) -> dict[str, object]:
    output = None if fact.output is None else Kept(fact.output)
    return {"kind": "finished", "summary": fact.summary, "output": output, "at_ms": at_ms}


def _interrupted(fact: RunInterrupted, at_ms: int) -> dict[str, object]:
    event = {"kind": "interrupted", "error": fact.error, "reason": fact.reason, "at_ms": at_ms}
    if fact.child_still_running is not None:
        event["child_still_running"] = fact.child_still_running
    return event


def _answered(fact: AskAnswered, at_ms: int) -> dict[str, object]:
    given = GivenAnswer(fact.who, fact.value, fact.edited, fact.channel, at_ms, fact.answer_id)
    closed = {"status": str(AskStatus.ANSWERED)} if fact.closes else {}
    return _ask_changed(fact, at_ms, answer=answer_told(given), **closed)


def _ask_changed(
    fact: AskAnswered | AskLapsed | AskEscalated | AskWithdrawn, at_ms: int, **changes: object
) -> dict[str, object]:
    return {"kind": "ask-changed", "ask_id": ask_id(fact.run_id, fact.number), **changes, "at_ms": at_ms}


_EVENTS: dict[type[Fact], Callable[[Any, int], dict[str, object]]] = {
    RunRequested: _started,
    AttemptStarted: lambda fact, at_ms: {"kind": "attempt", "attempt": fact.attempt, "at_ms": at_ms},
    RunReattached: lambda fact, at_ms: {"kind": "attempt", "attempt": max(1, fact.attempt), "at_ms": at_ms},
    ChunkEmitted: lambda fact, at_ms: {"kind": "chunk", "body": Kept(fact.body), "at_ms": at_ms},
    ProgressReported: lambda fact, at_ms: {"kind": "progress", "at_ms": at_ms, **unpack(fact.body)},
    MilestoneReached: _milestone,
    RunSucceeded: _finished,
    RunErrored: lambda fact, at_ms: {"kind": "error", "error": fact.error, "at_ms": at_ms},
    RunAborted: lambda fact, at_ms: {"kind": "aborted", "reason": fact.reason, "at_ms": at_ms},
    RunInterrupted: _interrupted,
    UndoBegan: lambda fact, at_ms: {"kind": "undoing", "error": fact.error, "at_ms": at_ms},
    AskAnswered: _answered,
    AskLapsed: lambda fact, at_ms: _ask_changed(fact, at_ms, status=str(AskStatus.EXPIRED)),
    AskEscalated: lambda fact, at_ms: _ask_changed(fact, at_ms, level=fact.level),
    AskWithdrawn: lambda fact, at_ms: _ask_changed(fact, at_ms, status=str(AskStatus.WITHDRAWN)),
    RunRetried: lambda _fact, at_ms: {"kind": "retried", "at_ms": at_ms},
    RunCleared: lambda _fact, at_ms: {"kind": "cleared", "at_ms": at_ms},
}
