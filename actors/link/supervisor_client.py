"""What a host or a client has asked of the supervisor and waits for: ends of runs, acceptances, and answers.

It lives in memory only. After a new hello everything that is still waited for is asked again, under the same ids.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from copy import copy
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Final

from perdure.actors.link.direct_calls import DirectCalls
from perdure.actors.link.messages import (
    Ask,
    Exists,
    Message,
    Plain,
    Question,
    Refused,
    Reply,
    RunEnded,
    RunsEnded,
    Wait,
)
from perdure.actors.link.peer import Peer, asked_again
from perdure.actors.link.wire import content_of, error_from_plain, pieces_of
from perdure.actors.ports import Dice
from perdure.actors.tasks import RANK, Tasks
from perdure.ledger import (
    AgentBeingDeleted,
    HostUnavailable,
    LedgerError,
    PerdureError,
    Request,
    RunBeingCleared,
    UnknownRun,
)
from perdure.policies import Rank, backoff_ms, condition_from, jittered_ms, runs_of

AGAIN_FIRST_MS, AGAIN_MOST_MS = 50, 1_000

_OLDER_CODE: Final = (
    "run %r of %s existed before, and goes on with the code with which it was requested; newer code has come since. To have the newer one, "
    "`perdure cancel %s` and use another run_id."
)

log = logging.getLogger("perdure.link")


@dataclass(eq=False, slots=True)
class _Wish:
    request: Request
    answer: asyncio.Future[object]
    tries: int = 1


class SupervisorClient:
    """The open questions of one process."""

    def __init__(self, dice: Dice, tasks: Tasks) -> None:
        self.peer: Peer
        self.direct_calls: DirectCalls
        self._dice, self._tasks = dice, tasks
        self._wishes: dict[str, list[_Wish]] = {}
        self._exists: dict[str, str] = {}
        self._asks: dict[str, tuple[Ask, asyncio.Future[object]]] = {}
        self._refusal: BaseException | None = None

    def refuse(self, problem: BaseException) -> None:
        # The conversation is over, because of a bug.
        while isinstance(problem, BaseExceptionGroup):
            problem = problem.exceptions[0]
        self._refusal = problem
        self.tell_all(problem)

    def tell_all(self, problem: BaseException) -> None:
        # What is asked from now on is heard.
        answers = [wish.answer for wishes in self._wishes.values() for wish in wishes]
        for answer in [*answers, *(future for _, future in self._asks.values())]:
            if not answer.done():
                answer.set_exception(copy(problem))
                answer.exception()  # of many only the first is heard of; that is no mistake

    def _expect_answers(self) -> None:
        if self._refusal is not None:
            raise copy(self._refusal)  # one that is raised again and again would keep the frames of all who were told

    @property
    def waits(self) -> list[str]:
        return [run_id for run_id, wishes in self._wishes.items() if any(wish.request.wait for wish in wishes)]

    def is_waiting(self, run_id: str) -> bool:
        """Whether the end of a run is waited for here; without a run, whether anything is."""
        if not run_id:
            return bool(self._asks or self._wishes)
        return any(wish.request.wait for wish in self._wishes.get(run_id, ()))

    def begin(self, request: Request) -> asyncio.Future[Plain]:
        """Ask for a run: the future of its end, or for a detached one of its acceptance."""
        return self.begin_many([request])[0]

    def begin_many(self, requests: list[Request]) -> list[asyncio.Future[object]]:
        """Ask for many runs in one go; the detached ones among them are accepted together.

        While a run that had one of the ids before is still being cleared, that one is asked for again and again.
        """
        self._expect_answers()
        loop = asyncio.get_running_loop()
        wishes = [_Wish(request, loop.create_future()) for request in requests]
        if any("after" in request.options for request in requests):  # behind that for which they wait
            for _, group in groupby(wishes, key=lambda wish: wish.request.wait):
                self._utter(list(group))
        else:
            self._utter(wishes)
        for wish in wishes:
            wish.answer.add_done_callback(partial(self._abandon, wish))
        return [wish.answer for wish in wishes]

    def _utter(self, wishes: list[_Wish]) -> None:
        # If one of them cannot be sent, none is asked for.
        awaited = [wish.request for wish in wishes if wish.request.wait]
        detached = [wish for wish in wishes if not wish.request.wait]
        said = pieces_of(awaited), pieces_of(wish.request for wish in detached)
        for wish in wishes:
            self._wishes.setdefault(wish.request.run_id, []).append(wish)
        if awaited:
            self.peer.push_many(said[0], awaited[0].parent)
        if detached:
            durable = self.peer.durable_many(said[1], detached[0].request.parent)
            self._tasks.start(self._accept(detached, durable))

    def _abandon(self, wish: _Wish, _answer: object) -> None:
        wishes = self._wishes.get(wish.request.run_id, [])
        if wish in wishes:
            wishes.remove(wish)
            if not wishes:
                del self._wishes[wish.request.run_id]

    async def _accept(self, wishes: list[_Wish], durable: asyncio.Future[None]) -> None:
        try:
            await durable
        except LedgerError:
            return  # those that wait were told
        for wish in wishes:
            run_id = wish.request.run_id
            status = self._exists.pop(run_id, None)
            if wish in self._wishes.get(run_id, ()) and not wish.answer.done():  # it was not refused meanwhile
                wish.answer.set_result(status)

    async def ask(self, question: Question) -> object:
        """Ask a question and wait for its answer. Raises the `PerdureError` with which it was refused."""
        return await self.question(question)

    async def ask_when_free(self, question: Question) -> object:
        """Like `ask`, again and again while the agent that it is about is being deleted."""
        return await self.answer_when_free(self.question(question), question)

    # Like `ask_when_free`, for a question that was asked already: the supervisor has heard it before whatever is said from now on.
    async def answer_when_free(self, answer: asyncio.Future[object], question: Question) -> object:
        tries = 1
        while True:
            try:
                return await answer
            except AgentBeingDeleted as problem:
                if problem.is_sender:
                    raise
            pause_ms = backoff_ms(tries, AGAIN_FIRST_MS, AGAIN_MOST_MS)
            await asyncio.sleep(jittered_ms(pause_ms, self._dice.roll()) / 1000)
            answer, tries = self.question(question), tries + 1

    def question(self, question: Question) -> asyncio.Future[Plain]:
        """Ask a question now: the future of its answer. Raises `BadRequest` for one that cannot be sent."""
        self._expect_answers()
        ask = Ask(self._dice.token(), question)
        (self.peer.push_awaited if RANK.get() is Rank.CALL else self.peer.push)(ask)
        future: asyncio.Future[Plain] = asyncio.get_running_loop().create_future()
        self._asks[ask.ref] = (ask, future)
        future.add_done_callback(lambda _: self._asks.pop(ask.ref, None))
        return future

    # False if it answers nothing here.
    def receive(self, message: Message) -> bool:
        match message:
            case RunEnded(run_id, outcome):
                self._ended(run_id, outcome)
            case RunsEnded():
                for run_id, outcome in message.outcomes():
                    self._ended(run_id, outcome)
            case Reply():
                self._replied(message)
            case Exists(run_id, status, has_older_code):
                self._existed(run_id, status, has_older_code=has_older_code)
            case Refused(run_id, error, content):
                self._refused(run_id, error_from_plain(error), content)
            case _:
                return False
        return True

    def _existed(self, run_id: str, status: str, *, has_older_code: bool) -> None:
        wishes = self._wishes.get(run_id, ())
        detached = [wish for wish in wishes if not wish.request.wait]
        if detached:
            self._exists[run_id] = status
        for wish in detached:  # that is durable, though what was said before it may not be
            if not wish.answer.done():
                wish.answer.set_result(status)
        if has_older_code and wishes:
            log.warning(_OLDER_CODE, run_id, wishes[0].request.agent_type, shlex.quote(run_id))

    def _ended(self, run_id: str, outcome: dict[str, object]) -> None:
        for wish in list(self._wishes.get(run_id, ())):
            if wish.request.wait and not wish.answer.done():
                wish.answer.set_result(outcome)

    def _refused(self, run_id: str, problem: PerdureError, content: list[object]) -> None:
        # The last one that asked for this is refused. Those before it were answered in their turn, and others asked for
        # something else. Only that no host comes up is told to all that wait.
        if isinstance(problem, HostUnavailable):
            for wish in [each for each in self._wishes.get(run_id, ()) if each.request.wait and not each.answer.done()]:
                self._refuse(wish, copy(problem))
            return
        for wish in reversed(self._wishes.get(run_id, ())):
            if content_of(wish.request) == content and not wish.answer.done():
                self._refuse(wish, problem)
                return

    def _refuse(self, wish: _Wish, problem: PerdureError) -> None:
        if isinstance(problem, RunBeingCleared) or self._is_early(wish, problem):
            self._abandon(
                wish, wish.answer
            )  # until it is asked for again it is not waited for: its end would be another's
            self._tasks.start(self._utter_later(wish))
            return
        wish.answer.set_exception(problem)
        wish.answer.exception()  # of many refused at once only the first is heard of; that is no mistake

    def _is_early(self, wish: _Wish, problem: PerdureError) -> bool:
        # What it waits for was put off, because a run that had its id before is still being cleared.
        if not (isinstance(problem, UnknownRun) and problem.field == "after"):
            return False
        sources = runs_of(condition_from(wish.request.options["after"]))
        return any(other.tries > 1 for source in sources for other in self._wishes.get(source, ()))

    async def _utter_later(self, wish: _Wish) -> None:
        pause_ms = backoff_ms(wish.tries, AGAIN_FIRST_MS, AGAIN_MOST_MS)
        await asyncio.sleep(jittered_ms(pause_ms, self._dice.roll()) / 1000)
        wish.tries += 1
        if not wish.answer.done():
            self._utter([wish])

    def _replied(self, reply: Reply) -> None:
        _, answer = self._asks.pop(reply.ref, (None, None))
        if answer is None or answer.done():
            return
        if reply.ok:
            answer.set_result(reply.value)
        else:
            answer.set_exception(error_from_plain(reply.value))

    # What a new supervisor life must be told again: every question without an answer, calls marked as asked before.
    def ask_again(self) -> list[Message]:
        again = [asked_again(ask) for ask, _ in self._asks.values()]
        waits = self.waits
        if waits:  # behind every request that is still under way, so what is unknown then is gone
            again.append(Wait(waits))
        return again
