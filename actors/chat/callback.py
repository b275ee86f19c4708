"""Asking for a turn and following it, from wherever the caller is, and telling a callback: `on_start, on_event*`, then one of three ends.

A follower asks the agent for the events from a number on, again and again. A new life of the agent answers as well as the old one, so the
death of a supervisor or a host does not end it. The ends of an attempt, in the stream:

    finish                     on_done
    error, abort               on_error
    data-interrupted           on_interrupted: this attempt is over, and the turn may go on without this callback. `attach` follows on,
                               and takes attempts that were over before it came for history.

The turn never waits for a callback. A callback that raises gets no more events, only the end; one that hangs is given up after a while.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypedDict, Unpack

from perdure.actors.chat.messages import Messages
from perdure.actors.chat.turn import TurnResult
from perdure.actors.code.author_call import is_async, tried
from perdure.actors.ports import Threads
from perdure.ledger import BadRequest, PerdureError, check_whole
from perdure.policies import TURN_ENDED, Json, JsonObject, TurnStatus

CALLBACK_TIMEOUT_S = 30.0
NAMES = ("on_start", "on_event", "on_done", "on_error", "on_interrupted")
FORGOTTEN = "The turn is over and was forgotten: its conversation was cleared, or its ended turns were deleted."
log = logging.getLogger("perdure.chat")


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """An interrupted attempt at a turn.

    Attributes:
        outcome: `scheduled` (another attempt comes), `exhausted` (the turn has ended), `unknown` (the agent cannot be asked).
        cause: `stall`, `process_lost`, `out_of_memory`, `connection`.
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
    """Any object with some of these methods, sync or async: `on_start({"requestId": …})`, `on_event(chunk)`, `on_done()`, `on_error(text)`,
    `on_interrupted(Interrupted)`."""


class Caller(Protocol):
    """How a follower reaches its agent. Sync callbacks run on `threads`."""

    threads: Threads

    def token(self) -> str:
        """A new identifier."""

    async def call(self, method: str, *args: object, **kwargs: object) -> Any:
        """Call a method of the agent."""


class TurnOptions(TypedDict, total=False):
    """The options of a request for a turn.

    Attributes:
        request_id: names the turn. The same id with the same content is the same turn.
        idempotency_key: the same, for callers with a key of their own, such as a mail's.
        metadata: plain data that stays with the turn; `active_turn` shows it.
        client_tools: tools that the client executes: `[{name, description, parameters}]`.
        chat_stream_stall_timeout_ms: in place of the class's.
    """

    request_id: str | None
    idempotency_key: str | None
    metadata: Json
    client_tools: list[JsonObject]
    chat_stream_stall_timeout_ms: float


async def ask_and_follow(
    trigger: str,
    caller: Caller,
    messages: Messages | None = None,
    callback: object = None,
    **options: Unpack[TurnOptions],
) -> TurnResult:
    """Ask for a turn under an id that is known here, so that it can be asked for again, and follow it."""
    request_id = options.pop("request_id", None) or caller.token()
    told = await caller.call("_perdure_begin_turn", trigger, messages, request_id, options)
    if told["reason"] != "dropped":
        return await follow(caller, request_id, callback, opening=told)
    runner = CallbackRunner(callback, caller.threads)
    await runner.tell("on_start", {"requestId": told["request_id"]})
    await runner.tell("on_error", told["error"])
    return _result_of(told)


async def continue_and_follow(caller: Caller, callback: object = None, **options: Unpack[TurnOptions]) -> TurnResult:
    """Ask for the continuation of the newest answer, and follow it."""
    return await ask_and_follow("continue", caller, None, callback, **options)


async def submit(caller: Caller, messages: Messages, **options: Unpack[TurnOptions]) -> dict[str, Any]:
    """Ask for a turn, and do not follow it."""
    request_id = options.pop("request_id", None)
    if request_id is None and not options.get("idempotency_key"):
        request_id = caller.token()
    told: dict[str, Any] = await caller.call("_perdure_accept_turn", "submission", messages, request_id, options)
    return told


class CallbackRunner:
    """Tells one callback, whose errors go to the log. Sync methods run on a thread."""

    def __init__(self, callback: object, threads: Threads) -> None:
        if callback is not None and not any(callable(getattr(callback, name, None)) for name in NAMES):
            raise BadRequest("callback", f"{callback!r:.200} has none of the methods {', '.join(NAMES)}")
        self._callback, self._threads = callback, threads
        self._hears_events = True

    async def tell(self, name: str, *args: object) -> None:
        """Call a method of the callback, if it has it, within `CALLBACK_TIMEOUT_S`."""
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
    callback: object = None,
    first: int = 0,
    *,
    opening: dict[str, Any] | None = None,
) -> TurnResult:
    """Follow a turn until the attempt that is under way has ended, and tell the callback.

    `opening` is the first answer, if it came with the acceptance. A known turn that is not found any more was cleared with its
    conversation, and counts as aborted. A caller that gives a `first` above 0 knew it.
    """
    check_whole("first", first, 0)
    runner = CallbackRunner(callback, caller.threads)
    attached, was_accepted = 0, first > 0 or opening is not None
    await runner.tell("on_start", {"requestId": request_id})
    while True:
        try:
            told, opening = opening or await caller.call("_perdure_follow_turn", request_id, first), None
        except PerdureError as problem:
            if isinstance(problem, BadRequest) and problem.field == "request_id" and (was_accepted or attached):
                gone = {
                    "request_id": request_id,
                    "status": TurnStatus.ABORTED,
                    "reason": "forgotten",
                    "next_event": first,
                }
                return await _ended(runner, {**gone, "error": FORGOTTEN})
            if isinstance(problem, BadRequest):
                await runner.tell("on_error", str(problem))
            else:
                lost: dict[str, Any] = {"outcome": "unknown", "cause": "connection", "attempt": 0, "text": str(problem)}
                await runner.tell("on_interrupted", Interrupted(request_id=request_id, next_event=first, **lost))
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


async def _ended(runner: CallbackRunner, told: dict[str, Any]) -> TurnResult:
    result = _result_of(told)
    if result.ok:
        await runner.tell("on_done")
    else:
        await runner.tell("on_error", result.error or f"The turn was {result.status}.")
    return result


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


def _result_of(told: dict[str, Any]) -> TurnResult:
    """The result in an answer of the agent."""
    return TurnResult(**{name: told[name] for name in TurnResult.__dataclass_fields__ if name in told})
