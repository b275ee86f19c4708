"""`perdure run tool-disconnect`: the connection to the model breaks at each place of a turn with tools and sub-agents.

The first turn has no fault. Its requests show where the next ones can break: before, between and inside all events, of the guide and of its
chat sub-agent, in each way of `provider.faults`. Running tools go on, no side effect happens twice, and the answer is whole. A turn ends
with an error only after a final refusal, or if the provider stays away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from perdure.scenarios.commands.options import AsJson, Data, World, WorldName
from perdure.scenarios.provider.faults import Fault, FaultKind
from perdure.scenarios.provider.scripted import SeenRequest
from perdure.scenarios.stories.chat_checks import EXHAUSTED, Ending
from perdure.scenarios.stories.chat_play import ChatScenario, Point, Points, Seed, named, points_max
from perdure.scenarios.stories.engine import perform

BREAKS: Final = (FaultKind.RESET, FaultKind.HANG_UP, FaultKind.END)
STALL_MS: Final = 1_500.0
PAUSE_MS: Final = 1_000.0
AT_WORK_MS: Final = 900.0
SILENCE_MS: Final = 200.0
DARK_MS: Final = 800.0
WRONG_KEY: Final = "The key of this scenario is wrong."
STATUSES: Final[tuple[tuple[int, str | None], ...]] = ((429, "1"), (503, None), (500, None), (529, None))


class ToolDisconnect(ChatScenario):
    name: ClassVar[str] = "tool-disconnect"

    def points_of(self, records: Sequence[SeenRequest]) -> list[Point]:
        points: list[Point] = []
        for record in records:
            child = record.asks == self.quiz.child_question(0).asks
            where = named(record, child=child)
            points += [_point(*place, record, child=child) for place in _places(where, record)]
            refusal = Fault(kind=FaultKind.REFUSED, duration_ms=DARK_MS)
            points += [Point(label=f"nobody listens at {where}", group="refused", fault=refusal, number=record.number)]
        own = [record for record in records if record.asks == self.quiz.question(0).asks]
        return [*points, *_at_work(own), *_endings(own)]


def _point(group: str, label: str, fault: Fault, record: SeenRequest, *, child: bool) -> Point:
    if fault.kind is FaultKind.STALL and child:  # the child waits longer than this silence lasts
        return Point(
            label=f"{label}, which ends",
            group="pause",
            fault=fault.model_copy(update={"duration_ms": PAUSE_MS}),
            results=record.results,
            child=True,
        )
    stall_ms = STALL_MS if fault.kind is FaultKind.STALL else None
    return Point(label=label, group=group, fault=fault, results=record.results, child=child, stall_ms=stall_ms)


def _places(where: str, record: SeenRequest) -> Iterator[tuple[str, str, Fault]]:
    count = len(record.sizes)
    for kind in BREAKS:
        yield kind, f"{kind} before the head of {where}", Fault(kind=kind)
        for event in range(count + 1):
            yield kind, f"{kind} before event {event} of {where}", Fault(kind=kind, event=event)
        for event in range(count):
            yield (
                f"{kind} inside",
                f"{kind} inside event {event} of {where}",
                Fault(kind=kind, event=event, inside=True),
            )
        for byte in (1, sum(record.sizes) // 2, sum(record.sizes) - 1):
            yield f"{kind} inside", f"{kind} after byte {byte} of {where}", Fault(kind=kind, byte=byte)
    for event in range(count):
        yield (
            "error",
            f"an error in the stream before event {event} of {where}",
            Fault(kind=FaultKind.ERROR, event=event),
        )
    for event in range(0, count, 2):
        yield "stall", f"silence before event {event} of {where}", Fault(kind=FaultKind.STALL, event=event)
    for status, after in STATUSES:
        fault = Fault(kind=FaultKind.STATUS, status=status, retry_after=after)
        yield str(status), f"status {status} for {where}", fault


def _at_work(records: Sequence[SeenRequest]) -> Iterator[Point]:
    # The tools are those that the broken reply requested.
    for record in records:
        for kind in BREAKS:
            for event in range(len(record.sizes) // 2, len(record.sizes)):
                yield Point(
                    label=f"{kind} before event {event} after {record.results} results, while tools are at work",
                    group=f"{kind} at work",
                    fault=Fault(kind=kind, event=event, duration_ms=SILENCE_MS),
                    results=record.results,
                    paces_ms={"write_file": AT_WORK_MS, "read_file": AT_WORK_MS, "shell": AT_WORK_MS},
                )


def _endings(records: Sequence[SeenRequest]) -> Iterator[Point]:
    for record in records:
        yield Point(
            label=f"a wrong key after {record.results} results",
            group="401",
            fault=Fault(kind=FaultKind.STATUS, status=401, type="invalid_request_error", message=WRONG_KEY),
            results=record.results,
            times=None,
            ending=Ending("error", WRONG_KEY),
        )
        yield Point(
            label=f"every connection breaks after {record.results} results",
            group="stays away",
            fault=Fault(kind=FaultKind.HANG_UP),
            results=record.results,
            times=None,
            ending=EXHAUSTED,
        )


def run_tool_disconnect(
    points: Points = None,
    seed: Seed = 0,
    world: World = WorldName.RAY,
    data: Data = Path("perdure-data"),
    as_json: AsJson = False,
) -> None:
    """Break the connection to the model at one place of each turn of a chat agent that has real tools and sub-agents.

    Each turn has its own question. Before any event of any request, of the agent or of its sub-agent, the connection is reset, closed,
    ended, cut inside an event, or falls silent; or the provider refuses, is busy, or stays away. Running tools must go on, every side
    effect must happen once, and the final answer must be whole. The exit code is 1 if anything differs.

    Examples:
        perdure run tool-disconnect
        perdure run tool-disconnect --points 60 --seed 7 --json
        perdure run tool-disconnect --world sim --points 1000
    """
    perform(ToolDisconnect(points_max(points, world), seed), world, data, as_json=as_json)
