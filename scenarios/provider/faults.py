"""Faults of the scripted model: which fault, for which request, and where in the reply.

A reply is a sequence of *acts*: a head, bytes, waits, and an end. `perform` turns frames, a fault and a pace into acts. The socket server
and the simulated transport carry them out, so a fault means the same in both.

| fault | what the client sees |
|---|---|
| `reset` | everything before the place, then a TCP reset |
| `hang_up` | everything before the place, then the connection closes without the end of the chunked body |
| `end` | everything before the place, then a clean end: no terminal chunk, no sentinel |
| `stall` | everything before the place, then silence; after `duration_ms`, or when released, it goes on |
| `error` | everything before the place, then an error object in the stream, then a clean end |
| `status` | an HTTP status with an error body, `Retry-After` if given, instead of a reply |
| `refused` | the port is closed from the request before, until `duration_ms` after the last open reply, or until opened |

Every fault but a refusal may first be silent for `duration_ms`. So a connection can be lost while a requested tool runs.

The place is before event number `event` (from 0; -1 is the last one, usually the sentinel), or with `inside` in the middle of it, inside a
character if possible; or after `byte` bytes of the body; or else before the head of the response.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple, Self

from perdure.scenarios.provider.events import Plain, StreamFailure, dumped, error_of, frames


class FaultKind(StrEnum):
    RESET = "reset"
    HANG_UP = "hang_up"
    END = "end"
    STALL = "stall"
    ERROR = "error"
    STATUS = "status"
    REFUSED = "refused"


UTF8_MASK, UTF8_INNER = 0b11000000, 0b10000000  # mark a byte inside a character
AFTER_HEAD = (FaultKind.END, FaultKind.ERROR)  # a clean end needs a response


# `message`, `type` and `code` are those of an error object. `retry_after` is the header.
class Fault(Plain):
    kind: FaultKind
    event: int | None = None
    inside: bool = False
    byte: int | None = None
    duration_ms: float | None = None
    status: int | None = None
    retry_after: str | None = None
    message: str = "scripted failure"
    type: str = "server_error"
    code: str | None = None

    @property
    def silence(self) -> tuple[SilentFor, ...]:
        if self.kind is FaultKind.STALL and self.duration_ms is None:
            return (SilentFor(None),)
        return () if self.duration_ms is None else (SilentFor(self.duration_ms),)

    @property
    def failure(self) -> StreamFailure:
        return StreamFailure(message=self.message, type=self.type, code=self.code)


class Rule(Plain):
    """The requests that get a fault: the first `times` that meet all given conditions.

    The request is the `number`-th since the plan was set (from 1), the newest user message contains `asks`, and the question has this
    number of tool `results`. A refusal has only a number, because its request is never seen.
    """

    fault: Fault
    number: int | None = None
    asks: str | None = None
    results: int | None = None
    times: int | None = 1


class FaultPlan(Plain):
    """The first matching rule that is not used up decides."""

    rules: tuple[Rule, ...] = ()

    @classmethod
    def at(cls, faults: Mapping[int, Fault]) -> Self:
        """A plan by request number: `FaultPlan.at({1: Fault(kind="reset", event=3)})`."""
        return cls(rules=tuple(Rule(number=number, fault=fault) for number, fault in faults.items()))


class Pace(Plain):
    first_ms: float = 0.0
    between_ms: float = 0.0


class ResponseHead(NamedTuple):
    status: int
    headers: tuple[tuple[str, str], ...]


class Said(NamedTuple):
    body: bytes


# None: until it is released.
class SilentFor(NamedTuple):
    ms: float | None


class End(NamedTuple):
    """The end of the response: whole (`whole`, `end`, `error`), by closing (`hang_up`) or by `reset`."""

    how: str


Act = ResponseHead | Said | SilentFor | End

STREAM_HEAD = ResponseHead(200, (("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")))
PLAIN_HEAD = ResponseHead(200, (("content-type", "application/json"),))


def perform(body: Sequence[bytes], fault: Fault | None, pace: Pace) -> tuple[Act, ...]:
    whole = (STREAM_HEAD, *_spoken(body, pace), End("whole"))
    if fault is None:
        return whole
    if fault.kind is FaultKind.STATUS:
        return *fault.silence, *refusal(fault.status or 500, fault.failure, fault.retry_after)
    place = place_of(body, fault)
    if place is None:
        return *fault.silence, *(whole if fault.kind is FaultKind.STALL else (End(fault.kind),))
    before, after = _cut(body, place)
    said = (STREAM_HEAD, *_spoken(before, pace), *fault.silence)
    if fault.kind is FaultKind.STALL:
        return *said, *_spoken(after, Pace(between_ms=pace.between_ms)), End("whole")
    if fault.kind is FaultKind.ERROR:
        return *said, *map(Said, frames([fault.failure], "", "")), End("error")
    return *said, End(fault.kind)


def refusal(status: int, failure: StreamFailure, retry_after: str | None = None) -> tuple[Act, ...]:
    headers = PLAIN_HEAD.headers + ((("retry-after", retry_after),) if retry_after is not None else ())
    return ResponseHead(status, headers), Said(dumped({"error": error_of(failure)}).encode()), End("whole")


def place_of(body: Sequence[bytes], fault: Fault) -> int | None:
    """After how many bytes of the body a fault happens; None if before the head. A place beyond the end is the end."""
    ends = [0, *accumulate(map(len, body))]
    if fault.byte is not None:
        return min(fault.byte, ends[-1])
    if fault.event is None:
        return 0 if fault.kind in AFTER_HEAD else None
    count = len(body)
    event = min(fault.event if fault.event >= 0 else max(0, count + fault.event), count)
    if not fault.inside or event == count:
        return ends[event]
    frame = body[event]  # to be cut inside of a character that has more than one byte, if there is one
    return ends[event] + next((at for at, each in enumerate(frame) if each & UTF8_MASK == UTF8_INNER), len(frame) // 2)


def _cut(body: Sequence[bytes], place: int) -> tuple[list[bytes], list[bytes]]:
    before: list[bytes] = []
    after: list[bytes] = []
    at = 0
    for frame in body:
        split = min(max(place - at, 0), len(frame))
        before += [frame[:split]] if split else []
        after += [frame[split:]] if split < len(frame) else []
        at += len(frame)
    return before, after


def _spoken(body: Sequence[bytes], pace: Pace) -> Iterator[Act]:
    for number, frame in enumerate(body):
        pause = pace.between_ms if number else pace.first_ms
        if pause:
            yield SilentFor(pause)
        yield Said(frame)
