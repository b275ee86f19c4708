"""The page folds events as the headless reducer does: in the order of their numbers, each once, whatever comes twice or too early."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from perdure.actors.events.reducer import AgentToolEvents, RunState
from tests.gateway.npm import play
from tests.gateway.real import ROOT

SHUFFLES = 40


def story(*events: dict[str, Any]) -> list[dict[str, Any]]:
    """The frames of a run that begins and then has these events."""
    begun = {"kind": "started", "agent_type": "m:Reader", "order": 0, "at_ms": 1}
    return [
        {"type": "agent-tool-event", "run_id": "r", "sequence": number, "event": event}
        for number, event in enumerate([begun, *events])
    ]


def chunk(type: str, **fields: Any) -> dict[str, Any]:
    """A piece of the child's stream, as its text."""
    return {"kind": "chunk", "body": json.dumps({"type": type, **fields})}


CALL = (
    chunk("tool-input-start", toolCallId="c", toolName="add"),
    chunk("tool-input-delta", toolCallId="c", inputTextDelta='{"a":1}'),
    chunk("tool-input-available", toolCallId="c", toolName="add", input={"a": 1}),
)
TEXT = (
    chunk("text-start", id="t"),
    chunk("text-delta", id="t", delta="one "),
    chunk("text-delta", id="t", delta="two"),
)
MARK = {"kind": "milestone", "name": "half", "milestone_sequence": 0, "at_ms": 3}
PROGRESS = {"kind": "progress", "fraction": 0.5, "message": "so far", "at_ms": 2}
STORIES = (
    story(*TEXT, chunk("text-end", id="t"), *CALL, chunk("tool-output-available", toolCallId="c", output="2")),
    story(
        *CALL, chunk("tool-output-error", toolCallId="c", errorText="no"), {"kind": "error", "error": "no", "at_ms": 9}
    ),
    story(*TEXT, MARK, {"kind": "attempt", "attempt": 2, "at_ms": 5}, *TEXT, {"kind": "finished", "summary": "two"}),
    story(
        PROGRESS, MARK, {"kind": "interrupted", "error": "lost", "reason": "x"}, {"kind": "finished", "summary": "yes"}
    ),
    story({"kind": "unheard of"}, chunk("data-new", data=1), PROGRESS, {"kind": "aborted", "reason": "enough"}),
)


def orders() -> list[list[dict[str, Any]]]:
    """Each story as it is, and in many orders with frames that come twice."""
    dice = Random(7)
    found = list(STORIES)
    for each in STORIES * SHUFFLES:
        frames = [*each, *dice.choices(each, k=3)]
        dice.shuffle(frames)
        found.append(frames)
    return found


def seen(run: RunState) -> dict[str, Any]:
    """What the reducer says of a run, in the words of the program."""
    return {
        "status": run.status,
        "attempt": run.attempt,
        "milestones": [each["name"] for each in run.milestones],
        "text": "".join(part["text"] for part in run.parts if part["type"] == "text"),
        "calls": [part.get("output", part.get("errorText")) for part in run.parts if "toolCallId" in part],
    }


def test_the_page_shows_what_the_reducer_says_in_any_order_of_events(tmp_path: Path) -> None:
    stories = tmp_path / "stories.json"
    stories.write_text(json.dumps(orders()))
    told = play(
        ROOT / "tests/gateway/dashboard_fold.mjs",
        (ROOT / "actors/dashboard/assets/fold.js").as_uri(),
        str(stories),
        which="none",
    )
    assert len(told) == len(orders())
    for frames, found in zip(orders(), told, strict=True):
        events = AgentToolEvents()
        for frame in frames:
            events.apply(frame)
        expected = seen(events.runs_by_id["r"])
        calls = [output for _name, _state, output in found["calls"]]
        assert {**{name: found[name] for name in expected}, "calls": calls} == expected
        assert found["next"] == events.last_sequence("r") + 1
