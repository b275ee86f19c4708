"""Reads the stream of one answer to its end.

The reason that the provider gives is the end of an answer. Usage figures may follow it, and get `TAIL_S`. Silence, a broken connection or
an error that may pass changes nothing after it: a finished answer is not asked for again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

from perdure.actors.chat.answer_reader import ENDING, AnswerReader
from perdure.actors.chat.turn_failures import ModelFailed, failure_of
from perdure.actors.chat.watchdog import Stalled, Watchdog
from perdure.actors.tasks import awaited
from perdure.policies import Event, Failure, FailureKind, stream_ended

if TYPE_CHECKING:
    from pydantic_ai.models import StreamedResponse


TAIL_S = 1.0
"""How long a provider may keep the connection open after it gave the reason of the end."""
LOOK_S = 0.5


# Reads what is there already, and lets others go first now and then.
#
# The library lets other tasks go first before each event of an answer. Each time is a turn of the event loop, which takes as long as the
# event does. It also lets go of the interpreter's lock for less time than a thread needs to wake. So a thread that had a call for this
# process was woken in vain at every event, and an answer that is there cost half as much again.
T = TypeVar("T")

IN_A_ROW_MAX: Final = 8
"""How many events are read in one turn of the loop: in a fifth of a millisecond."""


class EagerReading(Generator[object, None, T | None]):
    """The events of an iterator, one after the other: `await reading.next()` is the next event, or None after the last one.

    Whoever waits for an event that is not there yet waits as ever. The awaited object is this one, for all events.
    """

    def __init__(self, events: AsyncIterator[T]) -> None:
        self._events = events
        self._step: Generator[object, None, T | None]
        self._in_a_row = 1

    def next(self) -> EagerReading[T]:
        self._step = anext(self._events, None).__await__()
        return self

    def __await__(self) -> Generator[object, None, T | None]:
        return self

    def __next__(self) -> object:
        # With None there is nothing to wait for: others may go first.
        awaited = next(self._step)
        while awaited is None and self._in_a_row < IN_A_ROW_MAX:
            self._in_a_row += 1
            awaited = next(self._step)
        self._in_a_row = 1
        return awaited

    def send(self, _value: None) -> object:
        # A task sends nothing.
        return next(self)

    def throw(self, problem: Any, *_more: object) -> object:
        return self._step.throw(problem)


@dataclass(frozen=True)
class Finished:
    """The end of an answer. `reason` is `tool_call` if it calls tools of ours, else `stop`, `length`, `content_filter` or `error`.

    `usage` counts tokens: `input_tokens`, `output_tokens`, `cache_read_tokens`, …
    """

    reason: str
    usage: dict[str, int]
    response_id: str | None


async def read_answer(
    stream: StreamedResponse, reader: AnswerReader, watchdog: Watchdog, tail_s: float
) -> AsyncGenerator[Event | Finished]:
    """The chunks of an answer, and its end. Raises `ModelFailed` or `Stalled`."""
    reader.provider = stream.provider_name
    cutters: list[asyncio.Task[None]] = []  # most answers are over before there is one

    def look() -> None:
        cutters.append(awaited(_cut_tail(stream, watchdog, tail_s)))

    timer = asyncio.get_running_loop().call_later(LOOK_S, look)
    events = EagerReading(aiter(stream))
    try:
        while (event := await watchdog.within(events.next())) is not None:
            is_heard = False
            for chunk in reader.read(event):
                yield chunk
                is_heard = True
            if is_heard:
                watchdog.heard()
    except (ModelFailed, Stalled) as problem:
        would_repeat = isinstance(problem, Stalled) or problem.failure.is_transient
        if not would_repeat or reason_of_end(stream, is_over=False) is None:
            raise
    except Exception as problem:
        failure = failure_of(problem, is_reading=True)
        if not failure.is_transient or reason_of_end(stream, is_over=False) is None:
            raise ModelFailed(failure) from problem
    finally:
        timer.cancel()
        for cutter in cutters:
            cutter.cancel()
            await asyncio.gather(cutter, return_exceptions=True)
    for last in _end(stream, reader):
        yield last


def _end(stream: StreamedResponse, reader: AnswerReader) -> Iterator[Event | Finished]:
    reason = reason_of_end(stream, is_over=True)
    if stream.state == "suspended":
        words = (
            "the provider suspended its answer, as it does while its own tools work for long, and the rest of it cannot be asked for: "
            "ask for less at once, or allow these tools fewer uses"
        )
        raise ModelFailed(Failure(FailureKind.UNKNOWN, words, is_transient=False))
    if reason is None:
        raise ModelFailed(stream_ended())
    if reason == "tool_call" and not reader.has_calls:
        raise ModelFailed(stream_ended("the provider announced a call of a tool, and sent none that has a name"))
    yield from reader.finish(reason)
    # the library keeps the words of a refusal beside the answer
    refusal = (stream.provider_details or {}).get("refusal") or getattr(stream, "_refusal_text", "")
    yield from reader.refused(refusal if isinstance(refusal, str) else "")
    if reason in ENDING:  # providers name the end of an answer with calls in different ways
        reason = "tool_call" if len(reader.calls) else "stop"
    counts = {each.name: getattr(stream.usage, each.name) for each in fields(stream.usage)}
    usage = {
        name: count for name, count in counts.items() if name.endswith("_tokens") and isinstance(count, int) and count
    }
    yield Finished(reason, usage, stream.provider_response_id)


async def _cut_tail(stream: StreamedResponse, watchdog: Watchdog, tail_s: float) -> None:
    while reason_of_end(stream, is_over=False) is None:  # noqa: ASYNC110 - the library has no event for the reason
        await asyncio.sleep(LOOK_S)
    await asyncio.sleep(tail_s)
    with contextlib.suppress(NotImplementedError):
        await stream.cancel()
    await asyncio.sleep(tail_s)
    watchdog.cut()  # a cancelled stream ends by itself, but not that of every library


def reason_of_end(stream: StreamedResponse, *, is_over: bool) -> str | None:
    """The reason that the provider gave for the end of the answer, or None.

    The library makes `stop` of the bare end of a stream of chat completions. A reason that it does not know is in the provider's words:
    those for too long an answer name its length or its tokens. A model in this process, such as a test's, gives no reason. The words of
    a refusal may go on after the library has named the reason.
    """
    if not is_over and getattr(stream, "_has_refusal", False) and not getattr(stream, "_has_finish_reason", True):
        return None
    details = stream.provider_details or {}
    raw = details.get("finish_reason")
    reason = stream.finish_reason
    names = {kind.__name__ for kind in type(stream).__mro__}
    if reason == "stop" and raw is None and "OpenAIStreamedResponse" in names:
        return None
    if reason is None and isinstance(raw, str) and raw:
        return "length" if re.search("length|token", raw, re.IGNORECASE) else "stop"
    if reason is None and is_over and stream.provider_url is None:
        return "stop"
    return reason
