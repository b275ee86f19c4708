"""The caller's side of a chat, wherever it is: asking for a turn, telling a callback, and following a turn or the whole conversation.

The follower asks the agent for the events from a number on, again and again, and each answer is held open for some seconds while there is
nothing new. It asks for more only when its consumer has taken what came, so a slow consumer delays no other and costs no memory. A new life
of the agent answers as well as the old one, so no death ends the following.

A follower of a conversation does not keep its agent awake for ever. When nothing was said for a minute and no turn is under way, it asks
the supervisor each second whether the agent is awake, and lets it sleep. It looks again

    when the agent has slept and woken    at once, because somebody else has woken it
    when it has not slept in that time    as before, because somebody else keeps it awake
    when it has slept through a pause     briefly, in case something was written between the last look and the sleep. The pause doubles
                                          from ten seconds to ten minutes

and each event ends the rest.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypedDict, Unpack

from perdure.actors.chat.chat_messages import Messages
from perdure.actors.chat.feed import HOLD_S, FeedEvent, FeedPage
from perdure.actors.chat.turn import STEER, SteerReceipt, TurnPage, TurnResult
from perdure.actors.chat.watchdog import ShortWaits, WaitedTooLong
from perdure.actors.code.author_call import in_words, is_async, text_of, tried
from perdure.actors.ports import Threads
from perdure.actors.tasks import awaited
from perdure.ledger import BadRequest, LedgerError, PerdureError, SupervisorUnreachable, check_whole
from perdure.policies import TURN_ENDED, Json, JsonObject, TurnStatus

REST_AFTER_S: Final = 60.0
LOOK_S: Final = 1.0
PAUSE_S, PAUSE_MOST_S = 10.0, 600.0
AGAIN_S: Final = 1.0


class Caller(Protocol):
    """How a follower reaches its agent. Sync callbacks run on `threads`."""

    threads: Threads

    def token(self) -> str: ...

    async def call(self, method: str, *args: object, **kwargs: object) -> Any: ...

    @property
    def idle_s(self) -> float:
        # After so long without work the agent is put to sleep.
        ...

    async def is_awake(self) -> bool:
        # The question does not wake it.
        ...


async def follow_feed(caller: Caller, first: int = 0) -> AsyncGenerator[FeedEvent, None]:
    # The events have no end. The first look wakes the agent.
    check_whole("first", first, 0)
    rest = Rest(caller)
    while True:
        page: FeedPage = await caller.call("_perdure_feed", first, rest.hold_s)
        first = page["next"]
        for event in page["events"]:
            yield event
        await rest.after(is_resting=page["is_resting"])


class Rest:
    """When the follower looks next, and how long an answer may be held open."""

    def __init__(self, caller: Caller) -> None:
        self.hold_s = HOLD_S
        self._caller, self._loop = caller, asyncio.get_running_loop()
        self._first_pause_s = self._pause_s = max(PAUSE_S, 2 * caller.idle_s)
        self._told_at_s = self._loop.time()

    async def ask(self, method: str, *args: object) -> Any:
        # It is asked again and again while the supervisor is away or the ledger refuses.
        while True:
            try:
                return await self._caller.call(method, *args, self.hold_s)
            except (SupervisorUnreachable, LedgerError):
                await asyncio.sleep(AGAIN_S)

    async def after(self, *, is_resting: bool) -> None:
        # Returns when it is time for the next look. `is_resting`: the agent has said nothing new, and nothing is under way.
        if not is_resting:
            self._told_at_s, self._pause_s, self.hold_s = self._loop.time(), self._first_pause_s, HOLD_S
        elif self._loop.time() - self._told_at_s >= REST_AFTER_S:
            is_used = await self._is_used()
            self.hold_s = HOLD_S if is_used else 0.0
            self._pause_s = self._first_pause_s if is_used else min(self._pause_s * 2, PAUSE_MOST_S)

    async def _is_used(self) -> bool:
        # Waits for a pause, or until the agent has slept and woken. Returns whether somebody else keeps it awake.
        until_s, has_slept = self._loop.time() + self._pause_s, False
        while self._loop.time() < until_s:
            await asyncio.sleep(LOOK_S)
            is_awake = await self._caller.is_awake()
            if has_slept and is_awake:
                return True
            has_slept = has_slept or not is_awake
        return not has_slept


class TurnPages:
    """The events of one turn, page by page.

    Args:
        call: calls a method of the agent.
        first: the number of the first event that is wanted.
        opening: the first page, if it came with the acceptance.
        awaits_people: whether it goes on while the turn waits for a person; else it is told of that at once.
    """

    def __init__(
        self,
        call: Callable[..., Awaitable[TurnPage]],
        request_id: str,
        first: int = 0,
        opening: TurnPage | None = None,
        *,
        awaits_people: bool = False,
    ) -> None:
        self.next_event = first
        self._call, self._request_id, self._opening, self._awaits_people = call, request_id, opening, awaits_people

    async def next(self) -> TurnPage:
        page, self._opening = self._opening, None
        if page is None:
            asked = self._request_id, self.next_event
            page = await self._call("_perdure_follow_turn", *asked, awaits_people=self._awaits_people)
        self.next_event = page["next"]
        return page


def is_newest(page: TurnPage) -> bool:
    # Whether a page has come to the end of what is durable.
    return page["next"] >= page["next_event"] or not page["events"]


def is_last(page: TurnPage) -> bool:
    # Whether nothing follows a page, or only after a person has answered.
    return page["next"] >= page["next_event"] and page["status"] in (*TURN_ENDED, TurnStatus.PARKED)


# ---------------------------------------------------------------- asking for a turn, and telling a callback
# A callback is told `on_start, on_event*`, then one of three ends. The ends of an attempt, in the stream of a turn that is followed:
#
#     finish                     on_done
#     error, abort               on_error
#     data-interrupted           on_interrupted: this attempt is over, and the turn may go on without this callback. `attach` follows on,
#                                and takes attempts that were over before it came for history.
#     (it waits for a person)    on_interrupted, with the outcome `parked`: the turn goes on when its calls are answered, and `attach`
#                                then.
#
# With `follow=True` neither of the last two is an end: the callback is told of an interruption, and of the next attempt too.
#
# Neither the turn nor its follower waits for a callback, except at the end. A callback that raises gets no more events, only the end; one
# that hangs is given up.


CALLBACK_TIMEOUT_S = 30.0
END_GRACE_S = 2.0
"""How long the end of a turn waits for one call of a callback."""
_NAMES = ("on_start", "on_event", "on_done", "on_error", "on_interrupted")
FORGOTTEN = "The turn is over and was forgotten: its conversation was cleared, or its ended turns were deleted."
log = logging.getLogger("perdure.chat")


@dataclass(frozen=True, kw_only=True)
class Interrupted:
    """An interrupted attempt at a turn.

    Attributes:
        outcome: `scheduled` (another attempt comes), `exhausted` (the turn has ended), `parked` (it waits for a person), `unknown` (the
            agent cannot be asked).
        cause: `stall`, `process_lost`, `out_of_memory`, `person`, `connection`.
        attempt, max_attempts: as `on_chat_recovery` counts them; 0 if there is no recovery.
        next_event: the number to `attach` from.
        turn_attempt: which attempt at the turn was interrupted. It counts on where `attempt` begins anew.
    """

    request_id: str
    outcome: str
    cause: str
    attempt: int
    next_event: int
    incident_id: str = ""
    message_id: str = ""
    text: str = ""
    max_attempts: int = 0
    turn_attempt: int = 0


class StreamCallback(Protocol):
    """Any object with some of these methods, sync or async: `on_start({"requestId": …})`, `on_event(chunk)`, `on_done()`, `on_error(text)`,
    `on_interrupted(Interrupted)`."""


class TurnOptions(TypedDict, total=False):
    """The options of a request for a turn.

    Attributes:
        request_id: names the turn. The same id with the same content is the same turn.
        idempotency_key: the same, for callers with a key of their own, such as a mail's.
        metadata: plain data that stays with the turn; `active_turn` shows it.
        client_tools: tools that the client executes: `[{name, description, parameters}]`.
        chat_stream_stall_timeout_ms: in place of the class's.
        instead_of: the id of a message of the user that this one replaces, with all that follows it. For `regenerate`, of an answer.
        keep: whether what is replaced stays in the transcript, marked by `replacedBy` in its metadata and unseen by the model.
        follow: with True the end of the turn is waited for, through interruptions and the answers of people; with False only that of
            the attempt that the callback sees. By default it depends on whether there is a callback: without one interruptions are waited
            through, and a turn that waits for a person is returned as `parked`.
    """

    request_id: str | None
    idempotency_key: str | None
    metadata: Json
    client_tools: list[JsonObject]
    chat_stream_stall_timeout_ms: float
    instead_of: str
    keep: bool
    follow: bool | None


class SteerOptions(TypedDict, total=False):
    """The options of a message by which a turn is steered.

    Attributes:
        request_id, idempotency_key: name the message. The same one with the same words is the same message.
        metadata, client_tools: as those of `TurnOptions`, for the turn of its own that the message may become.
    """

    request_id: str | None
    idempotency_key: str | None
    metadata: Json
    client_tools: list[JsonObject]


async def ask_and_follow(
    trigger: str,
    caller: Caller,
    messages: Messages | None = None,
    callback: object = None,
    **options: Unpack[TurnOptions],
) -> TurnResult:
    # The id of the turn is known here, so that it can be asked for again.
    request_id = options.pop("request_id", None) or caller.token()
    to_the_end = options.pop("follow", None)
    told = await caller.call("_perdure_begin_turn", trigger, messages, request_id, options)
    if told["reason"] != "dropped":
        return await follow_turn(caller, request_id, callback, follow=to_the_end, opening=told)
    runner = _CallbackRunner(callback, caller.threads)
    runner.tell("on_start", {"requestId": told["request_id"]})
    await runner.finish("on_error", told["error"])
    return _result_of(told)


async def continue_and_follow(caller: Caller, callback: object = None, **options: Unpack[TurnOptions]) -> TurnResult:
    return await ask_and_follow("continue", caller, None, callback, **options)


async def regenerate_and_follow(caller: Caller, callback: object = None, **options: Unpack[TurnOptions]) -> TurnResult:
    return await ask_and_follow("regenerate", caller, None, callback, **options)


async def submit(caller: Caller, messages: Messages, **options: Unpack[TurnOptions]) -> dict[str, Any]:
    told: JsonObject = await _accept("submission", caller, messages, options)
    return told


async def steer(caller: Caller, message: str | Mapping[str, object], **options: Unpack[SteerOptions]) -> SteerReceipt:
    told: SteerReceipt = await _accept(STEER, caller, message, options)
    return told


async def _accept(trigger: str, caller: Caller, messages: Messages, options: TurnOptions | SteerOptions) -> Any:
    request_id = options.pop("request_id", None)
    if request_id is None and not options.get("idempotency_key"):
        request_id = caller.token()
    return await caller.call("_perdure_accept_turn", trigger, messages, request_id, options)


class _CallbackRunner:
    """Tells one callback, one call after the other, beside its caller. Errors go to the log. Sync methods run on a thread."""

    def __init__(self, callback: object, threads: Threads) -> None:
        if callback is not None and not any(callable(getattr(callback, name, None)) for name in _NAMES):
            raise BadRequest("callback", f"{callback!r:.200} has none of the methods {', '.join(_NAMES)}")
        self._callback, self._threads = callback, threads
        self._hears_events = True
        self._calls: deque[tuple[str, tuple[object, ...]]] = deque()
        self._called, self._calling, self._began_s = 0, "", 0.0
        self._waits = ShortWaits()
        self._teller: asyncio.Task[None] | None = None

    def hears(self, name: str) -> bool:
        return callable(getattr(self._callback, name, None))

    def tell(self, name: str, *args: object) -> None:
        if self.hears(name):
            self._calls.append((name, args))
            if self._teller is None or self._teller.done():
                self._teller = awaited(self._tell_all())

    async def finish(self, name: str, *args: object) -> None:
        # Returns when the end is told. A call that hangs is left behind, and the end is told nevertheless.
        loop = asyncio.get_running_loop()
        self.tell(name, *args)
        ended_s = loop.time()
        while self._teller is not None and not self._teller.done():
            called, since_s = self._called, max(ended_s, self._began_s)
            pause_s = since_s + END_GRACE_S - loop.time()
            await asyncio.wait([self._teller], timeout=pause_s if pause_s > 0 else END_GRACE_S)
            if self._called == called and self._calling == "on_event" and not self._teller.done():
                log.warning("A chat callback hangs in on_event. That call is given up, and the end is told.")
                await self.close()
                self._calls = deque(list(self._calls)[-1:])
                self._teller = awaited(self._tell_all())

    async def close(self) -> None:
        if self._teller is not None:
            self._teller.cancel()
            await asyncio.wait([self._teller])

    async def _tell_all(self) -> None:
        try:
            while self._calls:
                name, args = self._calls.popleft()
                if self._hears_events or name != "on_event":
                    self._calling, self._began_s = name, asyncio.get_running_loop().time()
                    await self._tell(name, *args)
                self._called += 1
        finally:
            self._waits.close()

    async def _tell(self, name: str, *args: object) -> None:
        until_s = asyncio.get_running_loop().time() + CALLBACK_TIMEOUT_S
        try:
            _, problem = await self._waits.within(tried(self._call(name, *args)), until_s)
        except WaitedTooLong as late:
            problem = late
        if problem is not None:
            self._hears_events = False
            log.warning("%s of a chat callback failed: %s", name, in_words(problem))

    async def _call(self, name: str, *args: object) -> None:
        method = getattr(self._callback, name)
        outcome = method(*args) if is_async(method) else await self._threads.run(lambda: method(*args))
        if inspect.isawaitable(outcome):
            await outcome


async def follow_turn(
    caller: Caller,
    request_id: str,
    callback: object = None,
    first: int = 0,
    *,
    follow: bool | None = None,
    opening: TurnPage | None = None,
) -> TurnResult:
    """Follow a turn, and tell the callback. `opening` is the first answer, if it came with the acceptance.

    A known turn that is not found any more was cleared with its conversation, and counts as aborted. A caller that gives a `first` above 0
    knew it.
    """
    check_whole("first", first, 0)
    runner = _CallbackRunner(callback, caller.threads)
    known = first > 0 or opening is not None
    follower = _Follower(caller, request_id, runner, first, opening, is_known=known, awaits_people=follow is True)
    runner.tell("on_start", {"requestId": request_id})
    try:
        return await follower.run(to_the_end=callback is None if follow is None else follow)
    except asyncio.CancelledError:
        await follower.lost("The caller has stopped following the turn.")
        raise
    finally:
        await runner.close()


class _Follower:
    def __init__(
        self,
        caller: Caller,
        request_id: str,
        runner: _CallbackRunner,
        first: int,
        opening: TurnPage | None,
        *,
        is_known: bool,
        awaits_people: bool,
    ) -> None:
        self._request_id, self._runner, self._first = request_id, runner, first
        self._is_known, self._awaits_people = is_known, awaits_people
        self._pages = TurnPages(caller.call, request_id, first, opening, awaits_people=awaits_people)
        self._attached: float = 0
        """The attempt that was under way when it came. Earlier ones are history; so are all of a turn that was over."""

    async def run(self, *, to_the_end: bool) -> TurnResult:
        # Follows to the end of the attempt, of the turn, or to where it waits for a person.
        while (page := await self._page()) is not None:
            self._is_known = self._is_known or bool(page["attempt"])
            is_over = page["status"] in TURN_ENDED
            self._attached = self._attached or (math.inf if is_over else page["attempt"])
            interrupted = self._heard(page, to_the_end=to_the_end)
            if interrupted is not None:
                await self._runner.finish("on_interrupted", interrupted[1])
                return interrupted[0]
            if is_last(page) and is_over:
                return await self._ended(_result_of(page))
            if is_last(page) and not self._awaits_people:
                return await self._parked(_result_of(page), page["attempt"])
        return await self._ended(
            TurnResult(
                request_id=self._request_id,
                status=TurnStatus.ABORTED,
                error=FORGOTTEN,
                reason="forgotten",
                next_event=self._first,
            )
        )

    async def lost(self, why: str) -> None:
        # Told when the turn cannot be followed any more.
        info = Interrupted(
            request_id=self._request_id,
            outcome="unknown",
            cause="connection",
            attempt=0,
            next_event=self._first,
            text=why,
        )
        await self._runner.finish("on_interrupted", info)

    async def _page(self) -> TurnPage | None:
        try:
            return await self._pages.next()
        except BadRequest as problem:
            if problem.field == "request_id" and self._is_known:
                return None
            await self._runner.finish("on_error", text_of(problem))
            raise
        except PerdureError as problem:
            await self.lost(text_of(problem))
            raise

    def _heard(self, page: TurnPage, *, to_the_end: bool) -> tuple[TurnResult, Interrupted] | None:
        for event in page["events"]:
            self._first += 1
            if event.get("type") == "data-interrupted" and event["data"]["attempt"] >= self._attached:
                interrupted = self._interrupted(event["data"])
                if not to_the_end:
                    return interrupted
                self._runner.tell("on_interrupted", interrupted[1])
            elif event.get("type") not in ("finish", "error", "abort"):
                self._runner.tell("on_event", event)
        self._first = page["next"]
        return None

    def _interrupted(self, data: dict[str, Any]) -> tuple[TurnResult, Interrupted]:
        info = Interrupted(
            request_id=self._request_id,
            next_event=self._first,
            attempt=data["recovery"],
            max_attempts=data["max_recoveries"],
            turn_attempt=data["attempt"],
            **{name: data[name] for name in ("outcome", "cause", "incident_id", "message_id", "text")},
        )
        words = f"attempt {info.turn_attempt} was interrupted ({info.cause}); {_COMING[info.outcome]}"
        return TurnResult(
            request_id=self._request_id,
            status=TurnStatus.INTERRUPTED,
            text=info.text,
            error=words,
            reason=info.cause,
            next_event=self._first,
        ), info

    async def _parked(self, result: TurnResult, attempt: int) -> TurnResult:
        info = Interrupted(
            request_id=self._request_id,
            outcome="parked",
            cause="person",
            attempt=0,
            turn_attempt=attempt,
            next_event=self._first,
            message_id="" if result.message is None else result.message["id"],
            text=result.text,
        )
        await self._runner.finish("on_interrupted", info)
        return result

    async def _ended(self, result: TurnResult) -> TurnResult:
        if result.ok:
            await self._runner.finish("on_done")
            return result
        if result.status == TurnStatus.ERROR and not self._runner.hears(
            "on_error"
        ):  # its `text` alone would not say so
            log.warning("The turn %s ended as error: %s", result.request_id, result.error)
        await self._runner.finish("on_error", result.error or f"The turn was {result.status}.")
        return result


_COMING = {"scheduled": "another attempt follows", "exhausted": "no further attempt follows", "unknown": "ask again"}


def _result_of(told: Mapping[str, Any]) -> TurnResult:
    return TurnResult(**{name: told[name] for name in TurnResult.__dataclass_fields__ if name in told})
