"""Following a turn from wherever its caller is, and telling a callback: `on_start, on_event*`, then exactly one of three ends.

A follower asks the agent for the events from a number on, again and again; the question may be asked of a new life of the agent as well as
of the old one, so neither a supervisor's death nor a host's ends it. What an attempt comes to stands in the stream:

    finish                     on_done
    error, abort               on_error
    data-interrupted           on_interrupted: this attempt is over, and the turn may go on without this callback. `attach` follows on,
                               and takes attempts that were over before it came for history.

The turn never waits for a callback. One that raises is told no more events but still the end, one that hangs is given up after a while.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from perdure.actors.chat.turn import TurnResult
from perdure.actors.code.author_call import is_async, tried
from perdure.actors.ports import Threads
from perdure.ledger import BadRequest, PerdureError, check_whole
from perdure.policies import TURN_ENDED, TurnStatus

CALLBACK_TIMEOUT_S = 30.0
NAMES = ("on_start", "on_event", "on_done", "on_error", "on_interrupted")
FORGOTTEN = "The turn is over and was forgotten: its conversation was cleared, or its ended turns were deleted."
log = logging.getLogger("perdure.chat")


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """An attempt at a turn is over before its end.

    Attributes:
        outcome: `scheduled`: another attempt comes; `exhausted`: none comes, and the turn has ended; `unknown`: the agent cannot be asked.
        cause: `stall`, `process_lost`, `out_of_memory`, `connection`.
        attempt: which attempt it was.
        next_event: the number to `attach` from.
    """

    request_id: str
    outcome: str
    cause: str
    attempt: int
    next_event: int
    incident_id: str = ""
    message_id: str = ""
    text: str = ""


class StreamCallback(Protocol):
    """What may be told of a turn. Any object will do, and any of the methods may be missing; they may be sync or async.

    `on_start({"requestId": …})`, `on_event(chunk)`, `on_done()`, `on_error(text)`, `on_interrupted(Interrupted)`.
    """


class Caller(Protocol):
    """How a follower reaches its agent. Sync callbacks run on `threads`."""

    threads: Threads

    def token(self) -> str:
        """A new identifier."""

    async def call(self, method: str, *args: object, **kwargs: object) -> Any:
        """Call a method of the agent."""


class CallbackRunner:
    """Tells one callback, and lets nothing that it does come back. Sync methods run on a thread, if there are any."""

    def __init__(self, callback: object, threads: Threads) -> None:
        if callback is not None and not any(callable(getattr(callback, name, None)) for name in NAMES):
            raise BadRequest("callback", f"{callback!r:.200} has none of the methods {', '.join(NAMES)}")
        self._callback, self._threads = callback, threads
        self._hears_events = True

    async def tell(self, name: str, *args: object) -> None:
        """Call a method of the callback, if it has it, in time."""
        method = getattr(self._callback, name, None)
        if not callable(method) or (name == "on_event" and not self._hears_events):
            return
        try:
            async with asyncio.timeout(CALLBACK_TIMEOUT_S):
                _, problem = await tried(self._call(method, *args))
        except TimeoutError as late:
            problem = late
        if problem is not None:
            self._hears_events = False
            log.warning("%s of a chat callback failed: %s: %s", name, type(problem).__name__, problem)

    async def _call(self, method: Callable[..., object], *args: object) -> None:
        outcome = method(*args) if is_async(method) else await self._threads.run(lambda: method(*args))
        if inspect.isawaitable(outcome):
            await outcome


async def follow(
    caller: Caller,
    request_id: str,
    callback: object,
    first: int = 0,
    *,
    was_accepted: bool = False,
    opening: dict[str, Any] | None = None,
) -> TurnResult:
    """Follow a turn until the attempt that is under way has ended, and tell the callback.

    `opening` is the first answer, if it came with the acceptance. A turn that was there and is not there any more was cleared with its
    conversation: it is aborted, as far as anybody can tell.
    """
    check_whole("first", first, 0)
    runner = CallbackRunner(callback, caller.threads)
    attached, was_accepted = 0, was_accepted or opening is not None
    await runner.tell("on_start", {"requestId": request_id})
    while True:
        try:
            told, opening = opening or await caller.call("_perdure_follow_turn", request_id, first), None
        except PerdureError as problem:
            if isinstance(problem, BadRequest) and problem.field == "request_id" and (was_accepted or attached):
                return await _forgotten(runner, request_id, first)
            if isinstance(problem, BadRequest):
                await runner.tell("on_error", str(problem))
            else:
                await runner.tell("on_interrupted", _unreachable(request_id, first, problem))
            raise
        attached = attached or told["attempt"]
        for number, event in enumerate(told["events"], first + 1):
            if event.get("type") == "data-interrupted" and event["data"]["attempt"] >= attached:
                return await _interrupted(runner, told, event["data"], number)
            if event.get("type") not in ("finish", "error", "abort"):
                await runner.tell("on_event", event)
        first = told["next"]
        if told["status"] in TURN_ENDED and first >= told["next_event"]:
            return await _ended(runner, told)


async def refused(caller: Caller, told: dict[str, Any], callback: object) -> TurnResult:
    """The end of a message that was not taken."""
    runner = CallbackRunner(callback, caller.threads)
    await runner.tell("on_start", {"requestId": told["request_id"]})
    await runner.tell("on_error", told["error"])
    return result_from(told)


async def _ended(runner: CallbackRunner, told: dict[str, Any]) -> TurnResult:
    result = result_from(told)
    if result.ok:
        await runner.tell("on_done")
    else:
        await runner.tell("on_error", result.error or f"The turn was {result.status}.")
    return result


async def _forgotten(runner: CallbackRunner, request_id: str, first: int) -> TurnResult:
    await runner.tell("on_error", FORGOTTEN)
    return TurnResult(
        request_id=request_id, status=TurnStatus.ABORTED, error=FORGOTTEN, reason="forgotten", next_event=first
    )


async def _interrupted(runner: CallbackRunner, told: dict[str, Any], data: dict[str, Any], first: int) -> TurnResult:
    known = {name: value for name, value in data.items() if name in Interrupted.__dataclass_fields__}
    info = Interrupted(request_id=told["request_id"], next_event=first, **known)
    await runner.tell("on_interrupted", info)
    return TurnResult(
        request_id=info.request_id,
        status=TurnStatus.INTERRUPTED,
        text=info.text,
        error=f"attempt {info.attempt} was interrupted ({info.cause}); {_COMING[info.outcome]}",
        reason=info.cause,
        next_event=first,
    )


_COMING = {"scheduled": "another attempt follows", "exhausted": "no further attempt follows", "unknown": "ask again"}


def _unreachable(request_id: str, first: int, problem: PerdureError) -> Interrupted:
    return Interrupted(
        request_id=request_id, outcome="unknown", cause="connection", attempt=0, next_event=first, text=str(problem)
    )


def result_from(told: dict[str, Any]) -> TurnResult:
    """What `_perdure_follow_turn` told of a turn, as its result."""
    return TurnResult(**{name: told[name] for name in TurnResult.__dataclass_fields__ if name in told})
