"""What a run is given beside its input: its number of attempts, what it remembers, and the way to say how far it is."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

from perdure.actors.code.awaited import may_be_awaited
from perdure.actors.life.asks import (
    Addressees,
    Answer,
    Unsaid,
    WantedAnswer,
    shown_by,
    time_stands_still,
    wanted_answer,
)
from perdure.actors.life.life import Life
from perdure.actors.life.results import MAIL, run_result
from perdure.actors.life.steps import RECORD, slot_of, told_apart
from perdure.actors.life.waits import (
    EVENT_TAKEN,
    NEVER,
    UNTIL,
    AttemptWaits,
    RemembersWaits,
    SentEvent,
    WaitEnd,
    this_thread,
)
from perdure.actors.link.messages import Fields
from perdure.actors.link.questions import ShowAsk
from perdure.actors.ports import KillPoint
from perdure.actors.tasks import Pending
from perdure.actors.telemetry.conventions import over_attempts
from perdure.ledger import (
    Chunk,
    Kept,
    Milestone,
    Progress,
    PromiseUndo,
    Waiting,
    WaitTimedOut,
    WithdrawAsk,
    check_id,
    check_number,
    check_text,
    pack,
    pack_value,
    shown,
    taken_out,
    type_of,
    unpack,
    unpack_value,
)
from perdure.policies import JsonObject, StepRecord, TraceContext

STASH = "\x00stash"
ASKED = "\x00ask"
SHOWN = "\x00shown\x00"
Show = Callable[[JsonObject], object]
"""Tells an agent of a question that is open."""
PIECES_S = 0.002  # pieces of a stream that come within it are reported together


class RunMessage(NamedTuple):
    """What was told to a run: plain data, and the address of the agent that told it; empty for a client."""

    value: Any
    sender: str


class RunContext(RemembersWaits[AttemptWaits]):
    """One attempt at a run, as its child sees it.

    Attributes:
        run_id: the id of the run.
        attempt: 1, 2, …; above 1 the run was entered before, and `stashed` and `step` tell how far it had come.
        parent_tool_call_id: the model's tool call that asked for it, if one did.
        behalf: the agents whose models' tool calls it is done for, the nearest first.
        began_by: the person who began it, or the first of all runs that led to it, where a gateway knows that; empty otherwise.
        joined: of a run with `after`, what the leaves of its condition came to, in their order: the `RunResult` of a run that has
            completed, its output as plain data (`isinstance(each, RunCompleted)`); the `data` of a milestone; None for a leaf that had
            not come true when the run might begin. It is the same in every attempt.
    """

    __perdure_context__: ClassVar = "RunContext"

    def __init__(
        self,
        life: Life,
        run_id: str,
        attempt: int,
        incarnation: int,
        tool_call: str | None,
        trace: str = "",
        behalf: Sequence[str] = (),
        joined: Sequence[object] = (),
        *,
        began_by: str = "",
        after: int = 0,
        over_ms: float = 0,
    ) -> None:
        super().__init__()
        self.count_handled: Callable[[int], None] = lambda _: None
        self._over_ms = over_ms
        self.has_promised = False
        self._undo_number = 0
        self._after = after  # attempts up to this do not count: the run was tried again since
        self.run_id, self.attempt, self.parent_tool_call_id, self.behalf = run_id, attempt, tool_call, tuple(behalf)
        self.began_by = began_by
        self.joined = [_joined(given) for given in joined]
        self._trace = trace  # what the request carried
        self._life, self._incarnation = life, incarnation
        self._latest: bytes | None = None
        self._sent_s = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._occurrences: dict[tuple[str, str], int] = {}
        self._chunks = 0
        self._pieces: list[bytes] = []

    @property
    def above(self) -> TraceContext:
        """What is above the spans of the run's attempts, where telemetry is on."""
        above = self._life.services.world.telemetry.above(self._trace, "run", self.run_id)
        return over_attempts(above, self.run_id, type_of(self._life.agent_id), self.parent_tool_call_id)

    @property
    def stashed(self) -> Any:
        """What an earlier attempt stashed last, or None."""
        body = self._life.steps(self.run_id).get(STASH)
        return None if body is None else unpack_value(body)

    @property
    def is_cancelled(self) -> bool:
        """Whether the run was told to stop; for sync code, which cannot be interrupted."""
        return self._life.is_leaving

    @may_be_awaited
    def stash(self, value: object) -> None:
        """Remember a value for a later attempt; durable on return."""
        self._boundary()
        self._remember(STASH, pack_value("stash", value))

    # waiting

    def _new_waits(self) -> AttemptWaits:
        # An instant child never looks at it; an event may come before its code begins.
        told = self._over_ms, self._taken_after, self.count_handled, self._main, self._thread
        return AttemptWaits(self._life, self.run_id, self.attempt, *told)

    @property
    def awaited(self) -> Waiting | None:
        """What its attempt has ended to wait for without a process."""
        return self.waits.report if self.has_waits else None

    def receive(self, *, timeout: float | timedelta | None = None) -> Pending[RunMessage]:
        """Wait for the next message that is told to this run (`tell(run, message)`), like `wait_for`."""
        until, most_ms = self._bound(timeout)
        self._may_wait("receive")
        return self._life.bridge(self._message(*self._asked(MAIL, until, most_ms)))

    def messages(self, *, timeout: float | timedelta | None = None) -> RunMessages:
        """The messages that are told to this run, for `async for`, or `for` in sync code. It ends when none has come for `timeout`."""
        return RunMessages(self, timeout)

    def ask(
        self,
        question: str,
        schema: Any = bool,
        *,
        to: Addressees = None,
        args: Mapping[str, object] | None = None,
        expires: float | timedelta | None = None,
        otherwise: Any = Unsaid.NOTHING,
        people: int = 1,
        self_answer: bool = False,
        via: object = None,
    ) -> Pending[Answer]:
        """Ask people something, and wait for the answer. Await it in async code.

        The question is durable, and stands in one inbox for the whole directory: `perdure asks`, `Runtime.asks`, `/api/asks`. The first
        answer that fits closes it everywhere. Without a process it waits like `sleep`. A later attempt that comes to the same question, by
        the order of the calls, finds it open, or has its answer. One that asks something else there, or others, asks anew. A question is
        withdrawn when the run ends, and when its task is cancelled.

        Args:
            schema: the type of the answer, as for the input of a run, or a list of choices; yes or no if it is left out.
            to: a group or a person, or several; each may be a pair with a pause (seconds or a `timedelta`), after which it comes to that
                one too: `["ops", ("managers", timedelta(hours=4))]`. Everybody may answer if it is left out.
            args: proposed arguments, which are shown; whoever answers may change them.
            expires: seconds or a `timedelta`, from the first time that it is asked. After it the answer is `otherwise`; without that
                `AskExpired` is raised, a `TimeoutError`.
            people: so many different people have to give the same answer. One `no` to a yes/no question is enough all the same.
            self_answer: whether somebody may answer who began the run.
            via: a handle of an agent that shows it to people: its exposed method `on_ask(ask)` is told of it exactly once when it opens,
                as `Runtime.asks` has it. That of a `MessengerAgent` posts it with buttons.
        """
        wanted = wanted_answer(
            question,
            schema,
            self._life.limits,
            to=to,
            args=args,
            expires=expires,
            otherwise=otherwise,
            people=people,
            self_answer=self_answer,
        )
        show = shown_by(via, wanted.to)
        self._may_wait("ask")
        return self._life.bridge(self._ask(self._occurrence(ASKED), wanted, this_thread(), show))

    async def _ask(self, key: str, wanted: WantedAnswer, thread: int, show: Show | None) -> Answer:
        with time_stands_still():
            return wanted.answer(self.run_id, await self._told(key, wanted, thread, "", show))

    def hear(self, wanted: WantedAnswer, note: str) -> Pending[bytes]:
        """Like `ask`, for a run that asks for others: what people have said, encoded. `note` says why it is asked again."""
        self._may_wait("ask")
        return self._life.bridge(self._told(self._occurrence(ASKED), wanted, this_thread(), note))

    async def _told(self, key: str, wanted: WantedAnswer, thread: int, note: str, show: Show | None = None) -> bytes:
        known = self._remembered(key)
        if known is not None:
            return known
        number = int(key.rpartition("\0")[2])
        try:
            return await self._answered(key, number, wanted, thread, note, show)
        except asyncio.CancelledError:
            if self.waits.goes_on:  # nobody waits for the answer any more
                said = WithdrawAsk(self.run_id, self._incarnation, number, wanted.digest)
                self._life.request(said)
            raise

    async def _answered(
        self, key: str, number: int, wanted: WantedAnswer, thread: int, note: str, show: Show | None
    ) -> bytes:
        life, refuses = self._life, ""
        while True:
            life.services.up(self.run_id)
            asked = wanted.opening(self.run_id, self._incarnation, number, life.now_ms(), note, refuses)
            await life.ask(asked)
            life.faults.at(KillPoint.MID_RUN, f"ask {number}")
            if show is not None:
                await self._show(number, show)
            event = await self.waits.event(wanted.event(number), NEVER, math.inf, thread)
            assert event is not None, "no time was set"
            note, refuses = wanted.problem(event.body), event.mail_id
            await self._taken(key, event, keep=not note)
            if not note:
                return event.body

    async def _show(self, number: int, show: Show) -> None:
        # Once for each time that it opens: what is remembered of it is written with the mail.
        told = cast("Fields", await self._life.services.supervisor.ask(ShowAsk(self.run_id, number)))
        key = f"{SHOWN}{number}\0{told['opened_at_ms']}\0{told['digest']}"
        if told["status"] == "open" and self._remembered(key) is None:
            with self._life.agent.transaction():
                show(told)
                self._remember(key, pack(True))
            await self._life.services.until_durable()
            self._life.faults.at(KillPoint.MID_RUN, f"question {number} shown")

    async def _taken(self, key: str, event: SentEvent, *, keep: bool) -> None:
        # What a type refuses is taken, and not remembered.
        try:
            await self._life.written(partial(self._take, key, event.body if keep else None, event))
        except BaseException:
            if self._remembered(key) is None:
                self.waits.put_back(event)
            raise
        await self._life.services.until_durable()

    async def _message(self, key: str, name: str, until: WaitEnd, most_ms: float, thread: int) -> RunMessage:
        return RunMessage(*await self._event(key, name, until, most_ms, thread))

    def _keeps_sleep(self) -> bool:
        return self._life.has_storage

    def _late(self, event: str) -> WaitTimedOut:
        return WaitTimedOut(self.run_id, event)

    def _take(self, key: str, body: bytes | None, event: SentEvent | None) -> None:
        with self._life.storage.transaction() as transaction:
            if body is not None:
                transaction.save_step(self.run_id, key, body)
                transaction.then(lambda: self._life.steps(self.run_id).update({key: body}))
            if event is not None:
                transaction.record_inbox([event.mail_id])
                said = partial(self.waits.say_taken, event.mail_id, self.last_step)
                transaction.then(lambda: self._life.on_loop(said))

    def _taken_after(self, mail_id: str) -> str:
        steps = self._life.steps(self.run_id).items()
        rows = [unpack(row) for key, row in steps if key.startswith(EVENT_TAKEN) and not key.endswith(UNTIL)]
        return next((after for _, _, _, known, after in rows if known == mail_id), "")

    # what it remembers

    def _remembered(self, name: str) -> bytes | None:
        if self._life.transaction is not None:  # it may roll back what it remembers
            return self._life.storage.steps(self.run_id).get(name) or None
        return self._life.steps(self.run_id).get(name) or None  # without a body, it was undone

    def _remember(self, name: str, body: bytes) -> None:
        with self._life.storage.transaction() as transaction:
            transaction.save_step(self.run_id, name, body)
            transaction.then(lambda: self._life.steps(self.run_id).update({name: body}))

    _note_down = _remember

    @property
    def _owner(self) -> str:
        return self.run_id

    def _counted(self, record: StepRecord) -> StepRecord:
        return record if record.round == self._after else record.counted_anew(self._after)

    def counted(self, name: str) -> StepRecord:
        """The record under this name, in this count of the tries."""
        body = self._remembered(name)
        return self._counted(StepRecord() if body is None else StepRecord(*unpack(body)))

    async def _promise(self) -> None:
        await self._life.ask(PromiseUndo(self.run_id, self._incarnation))
        self.has_promised = True

    def _promise_undo(self) -> Awaitable[None] | None:
        return None if self.has_promised else self._life.bridge(self._promise())

    def _next_number(self) -> int:
        with self._lock:
            if not self._undo_number:
                self._undo_number = max((record.number for _, record in self.records()), default=0)
            self._undo_number += 1
            return self._undo_number

    def records(self) -> list[tuple[str, StepRecord]]:
        """What is remembered of its steps beside their values, by their keys."""
        known = self._life.steps(self.run_id)
        keys = [name.removeprefix(RECORD) for name, body in list(known.items()) if name.startswith(RECORD) and body]
        return [(key, self._record_of(key)) for key in keys]

    def report_progress(
        self,
        fraction: float | None = None,
        *,
        message: str | None = None,
        phase: str | None = None,
        milestone: str | None = None,
        data: object = None,
        persist: bool = False,
        source: str = "",
    ) -> Awaitable[None]:
        """Say how far the run is. Await it in async code.

        Without a milestone the signal is coalesced: within a short window the latest wins and goes out at the window's end, and
        a fraction of 1 goes out at once (spec §8.1 and W-28); it is between 0 and 1. `data` is live only unless `persist` is set. A named
        `milestone` is durable on return, numbered, replayed, and the same one in a later attempt is not a second one. `source` is set by
        the runtime: the call of a tool whose milestones are counted by themselves.
        """
        most = self._life.limits.progress_bytes_max
        signal = _signal(fraction, message, phase, data, most, keep_data=persist or milestone is not None)
        self._life.faults.at(KillPoint.MID_RUN, "progress")
        if milestone is not None:
            self._boundary()
            place = source, slot_of(check_id("milestone", milestone, self._life.limits.id_max))
            with self._lock:
                nth = self._occurrences[place] = self._occurrences.get(place, 0) + 1
            return self._life.bridge(self._milestone(milestone, told_apart(nth), signal, source))
        self._life.on_loop(lambda: self._progress(signal, urgent=fraction is not None and fraction >= 1))
        return self._life.done()

    async def _milestone(self, name: str, nth: int, body: bytes, source: str) -> None:
        self.flush()
        self._say_pieces()
        self._life.services.up(self.run_id)
        await self._life.durable(Milestone(self.run_id, self._incarnation, name, nth, body, source=source))
        self._life.faults.at(KillPoint.MID_RUN, f"milestone {name}")

    def _progress(self, body: bytes, *, urgent: bool) -> None:
        self._latest = body
        loop = asyncio.get_running_loop()
        wait_s = 0.0 if urgent else self._sent_s + self._life.limits.progress_ms / 1000 - loop.time()
        if wait_s <= 0:
            self.flush()
        elif self._timer is None:
            self._timer = loop.call_later(wait_s, self.flush)

    def flush(self) -> None:
        """Send what was coalesced."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._latest is not None:
            self._life.services.up(self.run_id)
            self._life.push(Progress(self.run_id, self._incarnation, self._latest))
            self._latest, self._sent_s = None, asyncio.get_running_loop().time()

    @may_be_awaited
    def emit(self, body: object) -> None:
        """Add a piece to the run's stream of events, to be followed live and replayed later."""
        encoded = pack_value("chunk", body)

        def push() -> None:
            if not self._pieces:  # what comes in a moment, the end perhaps, goes the same way
                asyncio.get_running_loop().call_later(PIECES_S, self._say_pieces)
            self._pieces.append(encoded)

        self._life.on_loop(push)

    def _say_pieces(self) -> None:
        pieces, self._pieces = self._pieces, []
        if pieces:
            self._life.services.up(self.run_id)
        for piece in pieces:
            self._life.push(Chunk(self.run_id, self._incarnation, self._chunks, piece))
            self._chunks += 1

    def close(self) -> None:
        """The attempt is over: send what was coalesced, and no signal after it. The end says that it was at work."""
        self.waits_are_over()
        self._life.services.ended(self.run_id)
        if self._latest is not None:
            self.flush()
        if self._pieces:
            self._say_pieces()


class RunMessages:
    def __init__(self, run: RunContext, timeout: float | timedelta | None) -> None:
        self._run, self._timeout = run, timeout

    def __aiter__(self) -> RunMessages:
        return self

    async def __anext__(self) -> RunMessage:
        try:
            return await self._run.receive(timeout=self._timeout)
        except WaitTimedOut:
            raise StopAsyncIteration from None

    def __iter__(self) -> RunMessages:
        return self

    def __next__(self) -> RunMessage:
        try:
            return cast("RunMessage", self._run.receive(timeout=self._timeout))
        except WaitTimedOut:
            raise StopIteration from None


def _signal(
    fraction: float | None, message: str | None, phase: str | None, data: object, bytes_max: int, *, keep_data: bool
) -> bytes:
    signal: dict[str, object] = {}
    if fraction is not None:
        signal["fraction"] = check_number("fraction", fraction, 0, 1)
    for field, value in (("message", message), ("phase", phase)):
        if value is not None:
            signal[field] = check_text(field, value)
    if data is not None:
        # live-only data travels too, marked so that nothing keeps it
        signal["data" if keep_data else "live_data"] = Kept(pack_value("data", data, bytes_max))
    return pack(signal)


def _joined(given: Any) -> Any:
    if isinstance(given, bytes):
        return taken_out(unpack(given).get("data"))
    if given is None:
        return None
    output = given.get("output")
    return run_result(
        run_id=given["run_id"],
        agent_type=given.get("agent_type", ""),
        status=given["status"],
        output=None if output is None else shown(output),
        summary=given.get("summary", ""),
        error=given.get("error", ""),
    )
