"""A peer of the supervisor: a host, or a client in the driver's process. Both speak by `exchange` alone.

An exchange carries what the peer has to say and is answered with what the supervisor has to say; when neither has anything to say, it is
held open. So one mechanism brings commands to hosts, results to parents, and news of a supervisor's death to both: the exchange fails.

A peer that has heard something waits a moment before it listens again. What it has to say because of that, such as the end of an instant
run, goes with the same exchange. Each exchange costs about a millisecond of processor time.

What is pushed stays in the link until the supervisor has made it durable, through any number of failed exchanges and supervisor
lives. After a failure, or when the supervisor answers with another epoch, a new session begins with a hello.

Where the storages of agents are carried by the supervisor, what was committed is said before whatever is said next, or a moment later. So
nothing that was said can speak of a commit that is lost, and what leaves this process by other ways waits for `until_durable`.

What is pushed can be encoded: it is at once, or it is an end of a run that surely can be (`wire.piece_of`). Anything else raises
`BadRequest` to who pushes it, and was not said; so no message can harm the conversation of others.

The thousand runs that an agent asks for at once are said a frame at a time, and what the other agents of the process report meanwhile goes
before what is left of them. So these make room for the next runs while the supervisor is still deciding the first.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from copy import copy

from perdure.actors.link.link import FRAME_MAX, Link
from perdure.actors.link.messages import Ask, Call, Message, Patches
from perdure.actors.link.wire import (
    PROTOCOL,
    PeerFrame,
    Piece,
    SupervisorFrame,
    bodies_of,
    decode_all,
    frame_of,
    piece_of,
    pieces_of,
    read,
    weight_of,
)
from perdure.actors.ports import Transport, World
from perdure.actors.tasks import Tasks
from perdure.ledger import LedgerError, SupervisorUnreachable
from perdure.policies import Limits, backoff_ms, jittered_ms

IN_FLIGHT_MAX = 2
MOMENT_S = 0.15  # an exchange costs one or two milliseconds of processor time
LATER_S = 0.02  # what an agent does first when it has woken is done by then
ANSWER_S = 0.001  # an instant child has ended by then, and its parent has asked for the next one
# Between two tries to reach the supervisor, in ms. One that was killed is back within seconds, so it is asked for often at first.
PAUSE_MS, SOON_MS, LATER_MS = 20, 160, 1_000
BACK_S = 10.0


class Peer:
    """The conversation of one process with whichever supervisor lives.

    Args:
        hello: makes the first message of a session; it is told whether there was an earlier one.
        receive: takes a message of the supervisor. It must not wait; it may start tasks.

    Attributes:
        is_busy: whether others have work here, so that more will soon be said. The host knows.
        said_first: gives what was committed here, and the code that was written, and was not said yet.
        refused: what is done when the supervisor's ledger cannot go on; by default the life of this process ends.
    """

    def __init__(
        self,
        world: World,
        tasks: Tasks,
        transport: Transport,
        peer_id: str,
        limits: Limits,
        hello: Callable[[bool], Message],
        receive: Callable[[Message], None],
    ) -> None:
        self.peer_id = peer_id
        self.epoch = 0
        self.heard = 0
        self.failing_since: float | None = None
        self.transport = transport
        self._world, self._tasks, self._limits = world, tasks, limits
        self._hello, self._receive = hello, receive
        self._link: Link[Piece] = Link()
        self._waiting: deque[asyncio.Future[None] | None] = deque()
        self._batch: deque[tuple[Piece, asyncio.Future[None] | None]] = deque()  # what is said a frame at a time
        self._batch_of: set[str] = set()  # the agents that say it
        self._in_flight = 0
        self._confirmed = 0  # the session that the supervisor has answered
        self._greeting = False  # until then nothing overtakes the hello: a call must not seem to have been made before
        self._rewound = False
        self._prompt = False
        self._is_awaited = False  # whether something waits for what is to be said next
        self._listens = True  # a moment has passed since something was heard
        self._failures = 0
        self._wake = asyncio.Event()
        self._said_s = 0.0
        self._hurry = asyncio.Event()
        self.is_busy: Callable[[], bool] = lambda: False
        self.said_first: Callable[[], list[Message]] = list
        self.refused: Callable[[LedgerError], None] = tasks.fail

    def push(self, message: Message) -> None:
        """Say something, some time soon, and until it is durable. It goes after everything that was said before."""
        piece = piece_of(message)
        self._join_batch()
        self._say(piece)

    # As `push`, for many things that one agent says, a frame at a time (`pieces_of`).
    def push_many(self, pieces: Iterable[Piece], agent_id: str) -> None:
        self._batch.extend((piece, None) for piece in pieces)
        self._batch_of.add(agent_id)
        self._wake.set()

    def report(self, message: Message, agent_id: str = "") -> None:
        """Say what happened, as `push` does, but before what is left of the many things that are being said. Of those of the agent that is
        named everything goes first."""
        piece = piece_of(message)
        if agent_id in self._batch_of:
            self._join_batch()
        self._say(piece)

    def push_awaited(self, message: Message) -> None:
        """Say something that is waited for: it goes with the next exchange, however much there is to do here."""
        self.push(message)
        self._is_awaited = True
        self._hurry.set()

    def push_later(self, message: Message) -> None:
        """Say something that is not waited for: it goes with what is said next, or after a short while."""
        piece = piece_of(message)
        self._join_batch()
        self._queue(piece)
        asyncio.get_running_loop().call_later(LATER_S, self._wake.set)

    async def durable(self, message: Message) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        piece = piece_of(message)
        self._join_batch()
        self._say(piece, future)
        self._hurry.set()
        await future

    # The future is done when the supervisor has made them durable.
    def durable_many(self, pieces: Sequence[Piece], agent_id: str) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.push_many(pieces[:-1], agent_id)
        self._batch.append((pieces[-1], future))
        self._hurry.set()
        return future

    async def until_durable(self) -> None:
        self.say_first()
        if not self.is_clear:
            await self.durable(Patches([]))

    # Unless something that was said meanwhile took it along.
    def say_first(self) -> None:
        for message in self.said_first():
            self._put(piece_of(message))
            self._wake.set()

    def _say(self, piece: Piece, durable: asyncio.Future[None] | None = None) -> None:
        self._queue(piece, durable)
        self._prompt |= durable is not None
        self._wake.set()

    def _queue(self, piece: Piece, durable: asyncio.Future[None] | None = None) -> None:
        for first in self.said_first():
            self._put(piece_of(first))  # what threads commit meanwhile goes after it
        self._put(piece, durable)

    def _put(self, piece: Piece, durable: asyncio.Future[None] | None = None) -> None:
        self._link.push(piece, len(piece[0]))
        self._waiting.append(durable)

    def _join_batch(self, most: float = math.inf) -> None:
        # Until `most` messages wait, the batch takes its place behind what was said.
        while self._batch and self._link.unsent < most:
            self._say(*self._batch.popleft())
        if not self._batch:
            self._batch_of.clear()

    @property
    def pending(self) -> list[Message]:
        pieces = [*self._link.pending, *(piece for piece, _ in self._batch)]
        return [message for messages, _ in pieces for message in messages]

    @property
    def is_clear(self) -> bool:
        return self._link.is_clear and not self._batch

    async def serve(self) -> None:
        """Keep the conversation going until cancelled. `refused` is told of a ledger that cannot go on."""
        self._restart(again=False)
        while not self._tasks.has_ended:
            self._wake.clear()
            has_more = bool(self._link.unsent or self._batch)
            if (has_more and self._in_flight < IN_FLIGHT_MAX and not self._greeting) or (
                self._in_flight == 0 and self._listens
            ):
                if self._in_flight > 0:
                    await self._gather()
                self._said_s = asyncio.get_running_loop().time()
                self._in_flight += 1
                self._listens = False
                self._tasks.start(self._exchange(self._frame()))
            elif self._in_flight == 0:
                await self._moment()
            else:
                await self._wake.wait()

    async def _gather(self) -> None:
        # While there is much to do here, what is said within a moment goes together, unless it is waited for, or
        # until it is durable, or fills a frame. The exchange that is held open brings what the supervisor has to say
        # meanwhile.
        self._hurry.clear()
        pause_s = self._said_s + MOMENT_S - asyncio.get_running_loop().time()
        is_full = self._link.unsent + sum(len(messages) for (messages, _), _ in self._batch) >= FRAME_MAX
        if pause_s > 0 and self.is_busy() and not (is_full or self._prompt or self._is_awaited):
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._hurry.wait()

    async def _moment(self) -> None:
        timer = asyncio.get_running_loop().call_later(ANSWER_S, self._listen)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _listen(self) -> None:
        self._listens = True
        self._wake.set()

    def _frame(self) -> bytes:
        most = FRAME_MAX if self.epoch else 1  # a life that is not known yet hears hello alone
        self._join_batch(most)
        first, pieces = self._link.take(most, weight_of)
        self._greeting = self._confirmed != self._link.session
        hold, self._prompt, self._is_awaited = not (self._prompt or self._greeting), False, False
        rewind, self._rewound = self._rewound, False
        link = self._link
        frame = PeerFrame(self.peer_id, link.session, self.epoch, link.received, first, (), hold, rewind, PROTOCOL)
        return frame_of(frame, bodies_of(pieces))

    async def _exchange(self, frame: bytes) -> None:
        session = self._link.session
        try:
            answer = await self.transport.exchange(frame)
        except SupervisorUnreachable:
            await self._pause()
            if session == self._link.session:
                self._link.rewind()
                self._rewound = True
        except LedgerError as refusal:
            self.refused(refusal)
            session = self._link.session
            await self._pause()
        else:
            self._failures, self.failing_since = 0, None
            self._answered(session, SupervisorFrame(*read(answer, SupervisorFrame)))
        finally:
            if session == self._link.session:
                self._greeting = False
            self._in_flight -= 1
            self._wake.set()
            self._hurry.set()

    def begin_anew(self, problem: LedgerError) -> None:
        """Drop what was said and is not durable, tell what waits for it why, and greet again after a pause."""
        for future in [*self._waiting, *(future for _, future in self._batch)]:
            if future is not None and not future.done():
                future.set_exception(copy(problem))
                future.exception()  # nothing may be left to hear of it
        self._waiting.clear()
        self._batch.clear()
        self._batch_of.clear()
        session, self._link = self._link.session, Link()
        self._link.session = session
        self._restart(again=True)
        self._greeting = True  # nothing more is said before the pause is over

    async def _pause(self) -> None:
        now = asyncio.get_running_loop().time()
        self.failing_since = now if self.failing_since is None else self.failing_since
        self._failures += 1
        longest_ms = SOON_MS if now < self.failing_since + BACK_S else LATER_MS
        pause = backoff_ms(self._failures, PAUSE_MS, longest_ms)
        await asyncio.sleep(jittered_ms(pause, self._world.dice.roll()) / 1000)

    def _answered(self, session: int, answer: SupervisorFrame) -> None:
        epoch, confirmed, ack, first, messages, missed, seq = answer
        if session != self._link.session or epoch < self.epoch:
            return
        if epoch > self.epoch or confirmed != session:
            known, self.epoch = self.epoch, epoch
            if known or confirmed != session:
                self._restart(again=known > 0)
                return
        self._confirmed = session
        self.heard = max(self.heard, seq)
        if missed:
            self._link.rewind()
        fresh, gap = self._link.receive(first, decode_all(messages))
        if gap:
            self._rewound = True
            return
        for _ in range(self._link.acknowledge(ack)):
            future = self._waiting.popleft()
            if future is not None and not future.done():
                future.set_result(None)
        for message in fresh:
            self._receive(message)

    def _restart(self, *, again: bool) -> None:
        if self._link.restart(self._link.session + 1, piece_of(self._hello(again)), said_again if again else None):
            self._waiting.popleft()
        self._waiting.appendleft(None)
        self._prompt, self._greeting = any(future is not None for future in self._waiting), False


def said_again(piece: Piece, had: int) -> tuple[Piece, int]:
    # Without the first of it that an earlier life of the supervisor made durable.
    left = [asked_again(each) for each in piece[0][had:]]
    is_same = not had and left[0] is piece[0][0]  # a call is said alone
    return piece if is_same else pieces_of(left)[0], len(left)


def asked_again(message: Message) -> Message:
    # An earlier life of the supervisor may have handed the call over already.
    if isinstance(message, Ask) and isinstance(message.question, Call):
        return Ask(message.ref, message.question._replace(again=True))
    return message
