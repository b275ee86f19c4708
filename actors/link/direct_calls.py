"""Direct calls: questions that go to the host of an agent, and not to the supervisor each time.

Some methods are *asked at the host*: those that are asked again and again, for the next events of an answer or the next state, and those
that begin a turn or take a webhook. Each may be repeated. Their answers tell the route of the agent: its host and its life there. The next
question goes to that route, which takes two ways between processes instead of four, and nothing of the supervisor. A process that
finds no agent there, or gets no answer for any other reason, asks the supervisor, which wakes the agent and says what is wrong.

A route is known to the agent that asked, and not to others of its process: an ancestor may let one pass and refuse another.

A route is used for five seconds from the question whose answer told it. After that the host may have been given up without knowing it, so
the supervisor is asked.

All questions of a process to one host go together, and so do the answers: each call costs several processes a millisecond. A call brings
the questions that are new, and is held open by the host (`actors.host.host`) until there is an answer to any. When one fails, all
questions to that host are asked of the supervisor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextvars import copy_context
from functools import partial
from itertools import count
from typing import Final, NamedTuple

from perdure.actors.code.author_call import tried_now
from perdure.actors.link.messages import Plain
from perdure.actors.link.peer import Peer
from perdure.actors.link.wire import frame_of
from perdure.actors.tasks import RANK, Tasks
from perdure.ledger import HostUnavailable, pack, unpack

WATCHES, BEGINS = "watches", "begins"
"""How such methods are marked (`agent.exposing`): whether they may begin something."""
FRESH_S: Final = 5.0
"""For so long a route is used, from the question whose answer told it."""
KNOWN_MAX: Final = 1_000
CALLS_MAX: Final = 2
"""How many calls to one host are under way: one is held open, and one brings questions."""
PRESSURE: Final = 8
"""After more answers than this at once, the next ones are close behind."""
NOT_NOW: Final = b""
_MARK: Final = b"\xc1"  # no answer begins so by itself
MOMENT_S, PRESSURE_S = 0.001, 0.004
"""How long the next call waits after several answers, or many: who was answered asks again by then."""


# A life of an agent on a host. An empty host stands for none.
class DirectRoute(NamedTuple):
    host: str = ""
    incarnation: int = 0


class DirectRequest(NamedTuple):
    agent_id: str
    incarnation: int
    method: str
    body: bytes
    trace: str = ""


# What a process asks a host in one call. Each question has a number.
class DirectFrame(NamedTuple):
    asker: str
    call: int
    questions: Sequence[tuple[int, Sequence[Plain]]]


class DirectReply(NamedTuple):
    """The answer to a question: what was answered. Without one the supervisor is to be asked: after None because the agent is not here, or
    something is wrong; after `NOT_NOW` because nothing new begins at this host for a while. Then the agent still lives here."""

    number: int
    value: bytes | None


class DirectCalls:
    """The direct calls of one process, and the routes that it knows."""

    def __init__(self, tasks: Tasks, peer: Peer) -> None:
        self._tasks, self._peer = tasks, peer
        self._known: dict[tuple[str, str], tuple[DirectRoute, float]] = {}
        self._lines: dict[str, _Line] = {}
        self._numbers = count(1)  # of calls and of questions, to whichever host

    async def ask(
        self, who: str, agent: str, method: str, body: bytes, trace: str, otherwise: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """The answer of the agent's host or, if it gives none, of `otherwise`. `who` is the agent that asks."""
        asked_s = asyncio.get_running_loop().time()
        told = await self._seen(who, agent, method, body, trace)
        return self._learned((who, agent), await otherwise() if told is None else told, asked_s)

    async def _seen(self, who: str, agent: str, method: str, body: bytes, trace: str) -> bytes | None:
        route, until_s = self._known.get((who, agent), (DirectRoute(), 0.0))
        if not route.host or asyncio.get_running_loop().time() >= until_s:
            return None
        value = await self._line(route.host).ask(DirectRequest(agent, route.incarnation, method, body, trace))
        if value is None:
            self._known.pop((who, agent), None)
        return None if value == NOT_NOW else value

    def _line(self, host: str) -> _Line:
        # There is one line to a host at a time, or the answers for one would come by the calls of the other.
        if host not in self._lines:
            self._lines = {each: line for each, line in self._lines.items() if line.is_used}
            look = partial(self._peer.transport.look, host)
            self._lines[host] = _Line(self._tasks, look, self._peer.peer_id, self._numbers)
        return self._lines[host]

    def _learned(self, way: tuple[str, str], told: bytes, asked_s: float) -> bytes:
        # If a later question was answered before, the route is as fresh as that one.
        answer, route = split_route(told)
        known, until_s = self._known.pop(way, (DirectRoute(), 0.0))
        self._known[way] = route, max(asked_s + FRESH_S, until_s if known == route else 0.0)
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]
        return answer


class _Line:
    def __init__(
        self, tasks: Tasks, call: Callable[[bytes], Awaitable[bytes]], asker: str, numbers: Iterator[int]
    ) -> None:
        self._tasks, self._call, self._asker, self._numbers = tasks, call, asker, numbers
        self._open: dict[int, asyncio.Future[bytes | None]] = {}
        self._unsent: list[tuple[int, bytes]] = []
        self._in_flight = 0
        self._is_gathering = False

    @property
    def is_used(self) -> bool:
        return bool(self._open or self._in_flight or self._is_gathering)

    async def ask(self, look: DirectRequest) -> bytes | None:
        # None if the supervisor is to be asked, also because the question cannot be sent.
        number = next(self._numbers)
        body, _ = tried_now(lambda: pack((number, look)))
        if body is None:
            return None
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._open[number] = answer
        self._unsent.append((number, body))
        self._go_on()
        try:
            return await answer
        finally:
            self._open.pop(number, None)

    def _go_on(self) -> None:
        self._unsent = [(number, body) for number, body in self._unsent if number in self._open]
        may_ask = self._unsent and self._in_flight < CALLS_MAX
        if not self._is_gathering and (may_ask or (self._open and not self._in_flight)):
            self._in_flight += 1
            questions, self._unsent = self._unsent, []
            context = copy_context()
            context.run(RANK.set, None)  # it is made for all that ask
            frame = DirectFrame(self._asker, next(self._numbers), ())
            self._tasks.start(self._exchange(frame_of(frame, [body for _, body in questions], "questions")), context)

    async def _exchange(self, frame: bytes) -> None:
        answers: list[DirectReply] | None = None
        try:
            answers = [DirectReply(*each) for each in unpack(await self._call(frame))]
        except HostUnavailable:
            pass  # it is unknown which questions it had
        finally:
            self._in_flight -= 1
            self._tell([DirectReply(number, None) for number in self._open] if answers is None else answers)

    def _tell(self, answers: list[DirectReply]) -> None:
        for number, value in answers:
            answer = self._open.get(number)
            if answer is not None and not answer.done():
                answer.set_result(value)
        self._gather(len(answers))

    def _gather(self, count: int) -> None:
        # The processes that were answered have asked again by then.
        self._is_gathering = True
        pause_s = 0.0 if count <= 1 else MOMENT_S if count <= PRESSURE else PRESSURE_S
        asyncio.get_running_loop().call_later(pause_s, self._gathered)

    def _gathered(self) -> None:
        self._is_gathering = False
        self._go_on()


def method_key(agent_class: object, method: str) -> str:
    # Empty for a method that is not asked at the host.
    return str(getattr(getattr(agent_class, method, None), "__perdure_at_host__", ""))


def append_route(answer: bytes, route: DirectRoute) -> bytes:
    return _MARK + pack((answer, *route))


def split_route(answer: bytes) -> tuple[bytes, DirectRoute]:
    # The class there may be of another version than here, and tell no route.
    if not answer.startswith(_MARK):
        return answer, DirectRoute()
    content, *route = unpack(answer[1:])
    return bytes(content), DirectRoute(*route)
