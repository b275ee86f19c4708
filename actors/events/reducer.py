"""The headless reducer that turns frames into runs, for whatever shows them: a tray, a table, a test.

An event carries the same number of its run in every copy, live or replayed. On that one rule the reducer stands:

- A frame is *applied* when all before it have been; until then it *waits*. So doubling, reordering, and replay that
  races with live frames all end in the same state, and a chunk that overtakes `started` is not lost (spec W-32).
- Only a frame that was applied or waits counts as seen. What is malformed is not; a good copy of it may still come.
- An event of an unknown kind takes its number and shows nothing: an old client follows a newer server.
- At most `waiting_max` frames of a run wait; beyond that the farthest are given up, unseen. `missing` says what to
  ask for, and a replay after `last_sequence` always gets through, because frames in order never wait.
- `cleared` waits for no predecessors, which are gone from the ledger for ever. It removes the run, and its id stays
  removed until `reset`.

The state of a run follows the ledger's: a hard end (completed, error, aborted) changes no more; `interrupted` is
soft, and what repairs it leaves nothing of it behind (spec W-33). A new attempt starts with no parts; those of the
attempts before it are kept apart, so that two answers are never spliced into one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NotRequired, TypedDict, TypeVar

from perdure.actors.events.frames import (
    Attempt,
    Chunk,
    Frame,
    Interrupted,
    Milestone,
    Progress,
    Started,
    copy_of,
    frame_in,
    optional,
)
from perdure.actors.events.message_parts import apply_chunk, chunk_of
from perdure.ledger import HARD
from perdure.policies import Json, JsonObject, Part

WAITING_MAX = 1_000

Shown = Literal["running", "completed", "error", "aborted", "interrupted"]
"""Where a run stands for its viewer, who need not tell `starting` from `running`."""


class Signal(TypedDict):
    """What a progress and a milestone may both say; a field that is missing is not known."""

    fraction: NotRequired[float]
    message: NotRequired[str]
    phase: NotRequired[str]
    data: NotRequired[Json]


S = TypeVar("S", bound=Signal)


class ShownProgress(Signal):
    """The latest progress of a run, and the milestone that it came with."""

    at_ms: int
    milestone: NotRequired[str]


class ShownMilestone(Signal):
    """A milestone of a run."""

    name: str
    milestone_sequence: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class RunState:
    """A run as its viewer sees it: a snapshot that no later frame changes.

    `progress` holds those of `fraction, message, phase, data, milestone` that are known, and `at_ms`. `milestones`
    holds the fields of their events, in the order of their numbers. `error` is prose: what the child raised, why the
    run was cancelled, why nobody waits. `reason` and `child_still_running` belong to `interrupted` alone.
    `previous_parts` has the parts of earlier attempts by their number, without the attempts that had none.
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
    progress: ShownProgress | None = None
    milestones: list[ShownMilestone] = field(default_factory=list)


class AgentToolEvents:
    """The runs that a stream of frames tells of. Feed it every frame that arrives, in any order, as often as it comes.

    Not thread-safe. Whatever it returns is the caller's own list or dict of snapshots.
    """

    def __init__(self, *, waiting_max: int = WAITING_MAX) -> None:
        self._waiting_max = waiting_max
        self._tracks: dict[str, _Track] = {}

    def apply(self, frame: object) -> bool:
        """Take in a frame, or the JSON text of one. True if anything visible changed.

        Never raises: what is no frame of ours is ignored. The frame is copied, so the caller may use it again.
        """
        ours = frame_in(frame)
        if ours is None:
            return False
        track = self._tracks.get(ours["run_id"]) or _Track()
        if track.cleared or track.has_seen(ours["sequence"]):
            return False
        copied = copy_of(ours)
        if copied is None:
            return False
        self._tracks[copied["run_id"]] = track
        return track.take(copied, self._waiting_max)

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
        """The number up to which the run is known without a hole, -1 for an unknown run. A replay goes on after it."""
        track = self._tracks.get(run_id)
        return -1 if track is None else track.expected - 1

    def missing(self, run_id: str) -> range:
        """The first numbers that are lacking although later ones were heard of; empty if none is known to lack."""
        track = self._tracks.get(run_id)
        return range(0) if track is None else track.missing()

    def _runs(self) -> list[RunState]:
        runs = [track.run for track in self._tracks.values() if track.run is not None]
        return sorted(runs, key=lambda run: (run.order, run.run_id))


@dataclass(slots=True)
class _Track:
    """What is known of one run: how far it was applied, what waits, and the highest number ever heard of."""

    run: RunState | None = None
    expected: int = 0
    heard: int = -1
    waiting: dict[int, Frame] = field(default_factory=dict)
    cleared: bool = False

    def has_seen(self, sequence: int) -> bool:
        return sequence < self.expected or sequence in self.waiting

    def missing(self) -> range:
        return range(self.expected, min(self.waiting, default=self.heard + 1))

    def take(self, frame: Frame, waiting_max: int) -> bool:
        """Apply an unseen frame and all that waited for it, or let it wait. True if the run looks different now."""
        before = self.run
        self.heard = max(self.heard, frame["sequence"])
        if frame["event"]["kind"] == "cleared":
            self.run, self.cleared = None, True
            self.waiting.clear()
            self.expected = self.heard + 1
            return before is not None
        self._park(frame, waiting_max)
        while (ready := self.waiting.pop(self.expected, None)) is not None:
            self.run = _reduce(self.run, ready)
            self.expected += 1
        return self.run != before

    def _park(self, frame: Frame, waiting_max: int) -> None:
        """Let the frame wait, unless the bound is reached and it is the farthest; the expected frame always gets in."""
        self.waiting[frame["sequence"]] = frame
        if len(self.waiting) > max(waiting_max, 0) + (self.expected in self.waiting):
            del self.waiting[max(self.waiting)]


def _reduce(run: RunState | None, frame: Frame) -> RunState | None:
    """The run after a frame, which may leave it as it was."""
    event = frame["event"]
    if event["kind"] == "started":
        return _started(run, frame, event)
    step = _STEPS.get(event["kind"])
    if run is None or step is None or run.status in HARD:
        return run
    return step(run, event)


def _started(run: RunState | None, frame: Frame, event: Started) -> RunState:
    """A new run. A second `started` renews the description of a running one, and leaves an ended one (case 24)."""
    if run is not None and run.status != "running":
        return run
    return replace(
        run or RunState(run_id=frame["run_id"], agent_type="", order=0),
        agent_type=event["agent_type"],
        order=event["order"],
        parent_tool_call_id=optional(frame, "parent_tool_call_id", str) or None,
        input_preview=optional(event, "input_preview", str),
        display=optional(event, "display", dict),
        parent=optional(event, "parent", str),
    )


def _attempt(run: RunState, event: Attempt) -> RunState:
    if event["attempt"] < run.attempt or (event["attempt"] == run.attempt and run.status == "running"):
        return run
    at_work = _standing(run, "running")
    if event["attempt"] == run.attempt:
        return at_work
    earlier = {**run.previous_parts, run.attempt: run.parts} if run.parts else run.previous_parts
    return replace(at_work, attempt=event["attempt"], parts=[], previous_parts=earlier)


def _chunk(run: RunState, event: Chunk) -> RunState:
    body, parts = chunk_of(event["body"]), run.parts
    several = body.get("chunks") if body is not None and body.get("type") == "chunks" else [body]
    for each in several if isinstance(several, list) else ():
        chunk = chunk_of(each)
        parts = parts if chunk is None else apply_chunk(parts, chunk)
    return run if parts is run.parts else replace(run, parts=parts)


def _with_signal(shown: S, event: Progress | Milestone) -> S:
    """With those of the fields that a progress and a milestone share which are there and well typed."""
    fraction, message = optional(event, "fraction", int, float), optional(event, "message", str)
    phase = optional(event, "phase", str)
    if fraction is not None:
        shown["fraction"] = fraction
    if message is not None:
        shown["message"] = message
    if phase is not None:
        shown["phase"] = phase
    return shown


def _with_data(shown: S, event: Progress | Milestone) -> S:
    if "data" in event:
        shown["data"] = event["data"]
    return shown


def _progress(run: RunState, event: Progress) -> RunState:
    return replace(run, progress=_with_data(_with_signal(ShownProgress(at_ms=event["at_ms"]), event), event))


def _milestone(run: RunState, event: Milestone) -> RunState:
    """Keep it among the milestones, once; it is the latest progress too unless that is newer (spec §9.5)."""
    name, number, at_ms = event["name"], event["milestone_sequence"], event["at_ms"]
    if any(known["milestone_sequence"] == number for known in run.milestones):
        return run
    mark = _with_signal(ShownMilestone(name=name, milestone_sequence=number, at_ms=at_ms), event)
    milestones = sorted([*run.milestones, _with_data(mark, event)], key=lambda known: known["milestone_sequence"])
    if run.progress is not None and run.progress["at_ms"] > at_ms:
        return replace(run, milestones=milestones)
    progress = _with_signal(ShownProgress(milestone=name, at_ms=at_ms), event)
    return replace(run, milestones=milestones, progress=progress)


def _standing(
    run: RunState,
    status: Shown,
    *,
    summary: str | None = None,
    output: Json = None,
    error: str | None = None,
    reason: str | None = None,
    child_still_running: bool | None = None,
) -> RunState:
    """The run in another status, with nothing left of what an earlier one said about itself (spec W-33)."""
    return replace(
        run,
        status=status,
        summary=summary,
        output=output,
        error=error,
        reason=reason,
        child_still_running=child_still_running,
    )


def _interrupted(run: RunState, event: Interrupted) -> RunState:
    reason, child_still_running = optional(event, "reason", str), optional(event, "child_still_running", bool)
    return _standing(run, "interrupted", error=event["error"], reason=reason, child_still_running=child_still_running)


_STEPS: dict[str, Callable[[RunState, Any], RunState]] = {
    "attempt": _attempt,
    "chunk": _chunk,
    "progress": _progress,
    "milestone": _milestone,
    "finished": lambda run, event: _standing(run, "completed", summary=event["summary"], output=event.get("output")),
    "error": lambda run, event: _standing(run, "error", error=event["error"]),
    "aborted": lambda run, event: _standing(run, "aborted", error=optional(event, "reason", str)),
    "interrupted": _interrupted,
}
