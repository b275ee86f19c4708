"""The headless reducer that turns frames into runs, for whatever shows them: a dashboard, a table, a test.

A frame is one event of one run, as plain JSON data: `{type: "agent-tool-event", run_id, sequence, event, parent_tool_call_id?, replay?}`.
The ledger numbers the frames of each run from 0, without holes. Replay and live frames of the same event carry the same number
(spec W-30). The kinds of events:

    started      number 0: the run exists; `order` places it among the runs of its tool call
    attempt      the child works again: anew if `attempt` is higher, re-attached if it is the same
    chunk        a piece of the child's stream: a UI message chunk, or its JSON text, grows the parts
    progress     how far the child is; `fraction` is between 0 and 1
    milestone    a lasting achievement; `milestone_sequence` counts the run's milestones from 0
    finished     the child returned
    error        the child raised, or could not be carried to an end
    aborted      somebody cancelled the run
    interrupted  the parent stopped waiting; `reason` is typed, `error` is prose
    asked        the child asks people something; `ask` is the question as a row of the inbox
    ask-changed  it has come to others (`level` of those that it names), somebody has given an `answer`, or it is closed (`status`)
    undoing      the child fails, or was cancelled, and its steps are undone first: what it asks is withdrawn
    cleared      the run was forgotten

The reducer keeps these rules:

- A frame is *applied* when all before it have been; until then it *waits*. So doubled and reordered frames, and replay beside live
  frames, end in the same state, and a chunk that overtakes `started` is not lost (spec W-32).
- Only a frame that was applied or waits counts as seen. A frame without what its kind requires is malformed and does not count; a good
  copy may still come. An ill-typed optional field is ignored.
- An event of an unknown kind takes its number and shows nothing: an old client follows a newer server.
- At most `waiting_max` frames of a run wait; beyond that the farthest are dropped, unseen. `missing` says what to ask for. A replay after
  `last_sequence` always gets through, because frames in order never wait.
- `cleared` waits for no predecessors, which are gone from the ledger. It removes the run, and the id stays removed until `reset`.

The state of a run follows the ledger's: a hard end (completed, error, aborted) never changes; `interrupted` is soft, and what repairs it
leaves nothing of it behind (spec W-33). A new attempt starts with no parts. The parts of earlier attempts are kept apart, so that two
answers are never spliced into one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict, cast

from perdure.actors.events.message_parts import apply_chunk, chunks_of
from perdure.ledger import HARD, LAST_EVENTS, AskStatus
from perdure.policies import Json, JsonObject, Part

FRAME_TYPE = "agent-tool-event"
WAITING_MAX = 1_000

Shown = Literal["running", "completed", "error", "aborted", "interrupted"]
"""The status of a run for its viewer, who need not tell `starting` from `running`."""


class ProgressSignal(TypedDict, total=False):
    """A progress or a milestone, without the fields that are not known. `milestone` names the one that a progress came with."""

    at_ms: int
    name: str
    milestone_sequence: int
    fraction: float
    message: str
    phase: str
    data: Json
    milestone: str


class FoldedEvent(ProgressSignal, total=False):
    """An event of any kind. Its required fields are there; optional ones are there if they are well typed."""

    kind: str
    agent_type: str
    order: int
    input_preview: str
    display: JsonObject
    parent: str
    attempt: int
    body: Json
    summary: str
    output: Json
    error: str
    reason: str
    child_still_running: bool
    ask: JsonObject
    ask_id: str
    answer: JsonObject
    level: int
    status: str


class SentFrame(TypedDict):
    # A frame as the ledger gives it (`ledger.frames`).
    type: str
    run_id: str
    sequence: int
    event: FoldedEvent
    parent_tool_call_id: NotRequired[str]
    replay: NotRequired[bool]


class EventFrame(NamedTuple):
    run_id: str
    sequence: int
    event: FoldedEvent
    tool_call_id: str | None


_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("order", "attempt", "at_ms", "milestone_sequence"), (int,)),
    **dict.fromkeys(("agent_type", "input_preview", "parent", "name", "message", "phase"), (str,)),
    **dict.fromkeys(("kind", "summary", "error", "reason"), (str,)),
    "fraction": (int, float),
    "display": (dict,),
    "child_still_running": (bool,),
    "ask_id": (str,),
    **dict.fromkeys(("ask", "answer"), (dict,)),
}
_REQUIRED: dict[str, set[str]] = {
    "started": {"agent_type", "order"},
    "attempt": {"attempt"},
    "chunk": {"body"},
    "progress": {"at_ms"},
    "milestone": {"name", "milestone_sequence", "at_ms"},
    "finished": {"summary"},
    "error": {"error"},
    "interrupted": {"error"},
    "asked": {"ask"},
    "ask-changed": {"ask_id"},
}


def _is(value: object, types: tuple[type, ...]) -> bool:
    if isinstance(value, bool):  # which Python counts among the ints
        return bool in types or object in types
    return isinstance(value, types) and not (isinstance(value, float) and not isfinite(value))


def frame_of(given: object) -> EventFrame | None:
    # The frame in an object or in its JSON text, as a copy; None if it is malformed or none of ours.
    try:
        frame = json.loads(given if isinstance(given, str | bytes) else json.dumps(given))
    except (TypeError, ValueError, RecursionError):
        return None
    if not isinstance(frame, dict) or frame.get("type") != FRAME_TYPE:
        return None
    run_id, sequence, event = frame.get("run_id"), frame.get("sequence", -1), frame.get("event")
    if not isinstance(run_id, str) or not _is(sequence, (int,)) or sequence < 0 or not isinstance(event, dict):
        return None
    known = {name: value for name, value in event.items() if _is(value, _TYPES.get(name, (object,)))}
    if "kind" not in known or not known.keys() >= _REQUIRED.get(known["kind"], set()):
        return None
    call_id = frame.get("parent_tool_call_id")
    return EventFrame(
        run_id, sequence, cast("FoldedEvent", known), call_id if isinstance(call_id, str) and call_id else None
    )


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as its viewer sees it: a snapshot that no later frame changes.

    `error` is prose: what the child raised, why the run was cancelled, why nobody waits. `reason` and `child_still_running` belong to
    `interrupted` alone. `previous_parts` has the parts of earlier attempts by their number, without the attempts that had none.
    """

    run_id: str
    agent_type: str
    order: int
    parent_tool_call_id: str | None = None
    input_preview: str | None = None
    display: JsonObject | None = None
    parent: str | None = None
    status: Shown = "running"
    attempt: int = 1
    parts: list[Part] = field(default_factory=list)
    previous_parts: dict[int, list[Part]] = field(default_factory=dict)
    summary: str | None = None
    output: Json = None
    error: str | None = None
    reason: str | None = None
    child_still_running: bool | None = None
    progress: ProgressSignal | None = None
    milestones: list[ProgressSignal] = field(default_factory=list)


class RunAsks:
    """What one run asks people, as its events tell it in their order: rows of the inbox, as `Runtime.asks` gives them."""

    def __init__(self) -> None:
        self._rows: dict[str, JsonObject] = {}

    @property
    def is_open(self) -> bool:
        return any(row["status"] == AskStatus.OPEN for row in self._rows.values())

    def take(self, event: FoldedEvent) -> list[JsonObject]:
        # The rows that the event changes, as they are then.
        changed: list[JsonObject] = []
        if event["kind"] == "asked":
            changed = [event["ask"]]
        elif event["kind"] == "ask-changed":
            changed = [_changed(self._rows[event["ask_id"]], event)] if event["ask_id"] in self._rows else []
        elif event["kind"] in LAST_EVENTS or event["kind"] == "undoing":  # nobody is left to take an answer
            closed: JsonObject = {"status": str(AskStatus.WITHDRAWN), "closed_at_ms": event.get("at_ms")}
            changed = [row | closed for row in self._rows.values() if row["status"] == AskStatus.OPEN]
        self._rows |= {str(row["ask_id"]): row for row in changed}
        return changed


def _changed(row: JsonObject, event: FoldedEvent) -> JsonObject:
    to, later = cast("list[Json]", row["to"]), cast("list[JsonObject]", row["later"])
    if "answer" in event:  # the latest word of each person counts
        others = [each for each in cast("list[JsonObject]", row["answers"]) if each["who"] != event["answer"]["who"]]
        row = row | {"answers": [*others, event["answer"]]}
    if "level" in event:
        reached = max(0, event["level"] - len(to))
        row = row | {"to": [*to, *(each["to"] for each in later[:reached])], "later": [*later[reached:]]}
    if "status" in event:
        row = row | {"status": event["status"], "closed_at_ms": event.get("at_ms")}
    return row


class AgentToolEvents:
    """The runs that a stream of frames tells of. Feed it every frame that arrives, in any order, as often as it comes.

    Not thread-safe. What it returns is the caller's own list or dict of snapshots.
    """

    def __init__(self, *, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._tracks: dict[str, _Track] = {}

    def apply(self, frame: object) -> bool:
        """Take in a frame, or the JSON text of one. Returns whether anything visible changed. Never raises."""
        ours = frame_of(frame)
        if ours is None:
            return False
        track = self._tracks.setdefault(ours.run_id, _Track())
        return track.take(ours, self._waiting_max)

    @property
    def runs_by_id(self) -> dict[str, RunState]:
        """Every visible run, by its id; sorted by order, then id."""
        return {run.run_id: run for run in self._runs()}

    @property
    def runs_by_tool_call_id(self) -> dict[str, list[RunState]]:
        """The runs that belong to a tool call of the parent, by the call's id; each list sorted by order, then id."""
        runs_by_call: dict[str, list[RunState]] = {}
        for run in self._runs():
            if run.parent_tool_call_id is not None:
                runs_by_call.setdefault(run.parent_tool_call_id, []).append(run)
        return runs_by_call

    @property
    def unbound_runs(self) -> list[RunState]:
        """The runs that belong to no tool call, sorted by order, then id."""
        return [run for run in self._runs() if run.parent_tool_call_id is None]

    def runs_for_tool_call(self, tool_call_id: str) -> list[RunState]:
        """The runs of one tool call, sorted by order, then id; empty if there are none."""
        return [run for run in self._runs() if run.parent_tool_call_id == tool_call_id]

    def reset(self) -> None:
        """Forget everything, also what was seen and what was cleared."""
        self._tracks.clear()

    def last_sequence(self, run_id: str) -> int:
        """The number up to which the run is known without a hole; -1 for an unknown run. A replay continues after it."""
        track = self._tracks.get(run_id)
        return -1 if track is None else track.expected - 1

    def missing(self, run_id: str) -> range:
        """The first numbers that are missing although later ones came; empty if none is known to be missing."""
        track = self._tracks.get(run_id)
        return range(0) if track is None else range(track.expected, min(track.waiting, default=track.heard + 1))

    def _runs(self) -> list[RunState]:
        runs = [track.run for track in self._tracks.values() if track.run is not None]
        return sorted(runs, key=lambda run: (run.order, run.run_id))


@dataclass(slots=True)
class _Track:
    # How far the run was applied, what waits, and the highest number heard of.
    run: RunState | None = None
    expected: int = 0
    heard: int = -1
    waiting: dict[int, EventFrame] = field(default_factory=dict)
    cleared: bool = False

    def take(self, frame: EventFrame, waiting_max: int) -> bool:
        # Applies an unseen frame and all that waited for it, or lets it wait. Returns whether the run looks different now.
        if self.cleared or frame.sequence < self.expected or frame.sequence in self.waiting:
            return False
        before = self.run
        self.heard = max(self.heard, frame.sequence)
        if frame.event["kind"] == "cleared":
            self.run, self.cleared = None, True
            self.waiting.clear()
            self.expected = self.heard + 1
            return before is not None
        self.waiting[frame.sequence] = frame
        if len(self.waiting) > max(waiting_max, 0) + (self.expected in self.waiting):
            del self.waiting[max(self.waiting)]
        while (ready := self.waiting.pop(self.expected, None)) is not None:
            self.run = _reduce(self.run, ready)
            self.expected += 1
        return self.run != before


def _reduce(run: RunState | None, frame: EventFrame) -> RunState | None:
    event = frame.event
    if event["kind"] == "started":
        return _started(run, frame, event)
    step = _STEPS.get(event["kind"])
    # Nothing but a retry moves a hard end.
    if run is None or step is None or (run.status in HARD and event["kind"] != "retried"):
        return run
    return step(run, event)


def _started(run: RunState | None, frame: EventFrame, event: FoldedEvent) -> RunState:
    if run is not None and run.status != "running":  # a second `started` renews a running one only (case 24)
        return run
    return replace(
        run or RunState(run_id=frame.run_id, agent_type="", order=0),
        agent_type=event["agent_type"],
        order=event["order"],
        parent_tool_call_id=frame.tool_call_id,
        input_preview=event.get("input_preview"),
        display=event.get("display"),
        parent=event.get("parent"),
    )


def _attempt(run: RunState, event: FoldedEvent) -> RunState:
    if event["attempt"] < run.attempt or (event["attempt"] == run.attempt and run.status == "running"):
        return run
    at_work = _standing(run, "running")
    if event["attempt"] == run.attempt:
        return at_work
    earlier = {**run.previous_parts, run.attempt: run.parts} if run.parts else run.previous_parts
    return replace(at_work, attempt=event["attempt"], parts=[], previous_parts=earlier)


def _chunk(run: RunState, event: FoldedEvent) -> RunState:
    parts = run.parts
    for chunk in chunks_of(event["body"]):
        parts = apply_chunk(parts, chunk)
    return run if parts is run.parts else replace(run, parts=parts)


def _signal(event: FoldedEvent, *names: str) -> ProgressSignal:
    wanted = ("at_ms", "fraction", "message", "phase", *names)
    return cast("ProgressSignal", {name: value for name, value in event.items() if name in wanted})


def _milestone(run: RunState, event: FoldedEvent) -> RunState:
    number = event["milestone_sequence"]
    if any(known["milestone_sequence"] == number for known in run.milestones):
        return run
    mark = _signal(event, "name", "milestone_sequence", "data")
    milestones = sorted([*run.milestones, mark], key=lambda known: known["milestone_sequence"])
    # A milestone is the latest progress too, unless that is newer (spec §9.5).
    if run.progress is not None and run.progress["at_ms"] > event["at_ms"]:
        return replace(run, milestones=milestones)
    return replace(run, milestones=milestones, progress={**_signal(event), "milestone": event["name"]})


def _standing(run: RunState, status: Shown, **told: object) -> RunState:
    # Nothing is left of what an earlier status said about itself (spec W-33).
    blank: dict[str, Any] = dict.fromkeys(("summary", "output", "error", "reason", "child_still_running"))
    return replace(run, status=status, **(blank | told))


_STEPS: dict[str, Callable[[RunState, FoldedEvent], RunState]] = {
    "attempt": _attempt,
    "chunk": _chunk,
    "progress": lambda run, event: replace(run, progress=_signal(event, "data")),
    "milestone": _milestone,
    "finished": lambda run, event: _standing(run, "completed", summary=event["summary"], output=event.get("output")),
    "error": lambda run, event: _standing(run, "error", error=event["error"]),
    "retried": lambda run, _event: _standing(run, "running"),
    "aborted": lambda run, event: _standing(run, "aborted", error=event.get("reason")),
    "interrupted": lambda run, event: _standing(
        run, "interrupted", **{name: event.get(name) for name in ("error", "reason", "child_still_running")}
    ),
}
