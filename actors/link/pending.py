"""What a host or a client has asked of the supervisor and waits for: ends of runs, acceptances, and answers.

It lives in memory only. After a new hello everything that is still waited for is asked again, under the same ids.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Any

from perdure.actors.link.peer import Peer
from perdure.actors.link.wire import content_of, error_from_plain, message
from perdure.actors.ports import Dice
from perdure.actors.tasks import Tasks
from perdure.ledger import AgentBeingDeleted, PerdureError, Request, RunBeingCleared
from perdure.policies import backoff_ms, jittered_ms

AGAIN_FIRST_MS, AGAIN_MOST_MS = 50, 1_000


@dataclass(eq=False, slots=True)
class _Wish:
    """A run that was asked for, and whoever waits for its end, or for its acceptance."""

    request: Request
    answer: asyncio.Future[Any]
    tries: int = 1


class Asking:
    """The open questions of one process."""

    def __init__(self, dice: Dice, tasks: Tasks) -> None:
        self.peer: Peer
        self._dice, self._tasks = dice, tasks
        self._wishes: dict[str, list[_Wish]] = {}
        self._exists: dict[str, str] = {}
        self._asks: dict[str, tuple[list[Any], asyncio.Future[Any]]] = {}
        self._refusal: BaseException | None = None

    def refuse(self, problem: BaseException) -> None:
        """The conversation is over, because the ledger cannot go on: tell whoever waits for something, and whoever asks from now on."""
        while isinstance(problem, BaseExceptionGroup):
            problem = problem.exceptions[0]
        self._refusal = problem
        answers = [wish.answer for wishes in self._wishes.values() for wish in wishes]
        for answer in [*answers, *(future for _, future in self._asks.values())]:
            if not answer.done():
                answer.set_exception(problem)
                answer.exception()  # of many only the first is heard of; that is no mistake

    def _expect_answers(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    @property
    def waits(self) -> list[str]:
        """The runs whose ends are waited for."""
        return [run_id for run_id, wishes in self._wishes.items() if any(wish.request.wait for wish in wishes)]

    def begin(self, request: Request) -> asyncio.Future[Any]:
        """Ask for a run: the future of its end, or for a detached one of its acceptance."""
        return self.begin_many([request])[0]

    def begin_many(self, requests: list[Request]) -> list[asyncio.Future[Any]]:
        """Ask for many runs in one go; the detached ones among them are accepted together.

        While a run that had one of the ids before is still being cleared, that one is asked for again and again.
        """
        self._expect_answers()
        loop = asyncio.get_running_loop()
        wishes = [_Wish(request, loop.create_future()) for request in requests]
        for wish in wishes:
            wish.answer.add_done_callback(partial(self._abandon, wish))
        self._utter(wishes)
        return [wish.answer for wish in wishes]

    def _utter(self, wishes: list[_Wish]) -> None:
        detached = []
        for wish in wishes:
            self._wishes.setdefault(wish.request.run_id, []).append(wish)
            if wish.request.wait:
                self.peer.push(message(wish.request))
            else:
                detached.append(wish)
        if detached:
            self._tasks.start(self._accept(detached))

    def _abandon(self, wish: _Wish, _answer: asyncio.Future[Any]) -> None:
        """Nobody waits for this any more, because it was answered or given up."""
        wishes = self._wishes.get(wish.request.run_id, [])
        if wish in wishes:
            wishes.remove(wish)
            if not wishes:
                del self._wishes[wish.request.run_id]

    async def _accept(self, wishes: list[_Wish]) -> None:
        for wish in wishes[:-1]:
            self.peer.push(message(wish.request))
        await self.peer.durable(message(wishes[-1].request))
        for wish in wishes:
            run_id = wish.request.run_id
            status = self._exists.pop(run_id, None)
            if wish in self._wishes.get(run_id, ()) and not wish.answer.done():  # it was not refused meanwhile
                wish.answer.set_result(status)

    async def ask(self, name: str, *args: Any) -> Any:
        """Ask a question and wait for its answer. Raises the `PerdureError` with which it was refused."""
        return await self.question(name, *args)

    async def ask_when_free(self, name: str, *args: Any) -> Any:
        """The same, again and again while the agent that it is about is being deleted."""
        return await self.answer_when_free(self.question(name, *args), name, *args)

    async def answer_when_free(self, answer: asyncio.Future[Any], name: str, *args: Any) -> Any:
        """The same for a question that was asked already: the supervisor has heard it before whatever is said from now on."""
        tries = 1
        while True:
            try:
                return await answer
            except AgentBeingDeleted as problem:
                if problem.is_sender:
                    raise
            pause_ms = backoff_ms(tries, AGAIN_FIRST_MS, AGAIN_MOST_MS)
            await asyncio.sleep(jittered_ms(pause_ms, self._dice.roll()) / 1000)
            answer, tries = self.question(name, *args), tries + 1

    def question(self, name: str, *args: Any) -> asyncio.Future[Any]:
        """Ask a question now: the future of its answer."""
        self._expect_answers()
        ref = self._dice.token()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        said = ["ask", ref, name, list(args)]
        self._asks[ref] = (said, future)
        future.add_done_callback(lambda _: self._asks.pop(ref, None))
        self.peer.push(said)
        return future

    def receive(self, said: list[Any]) -> bool:
        """Take a message of the supervisor, if it answers something here."""
        tag, *rest = said
        if tag == "end":
            self._ended(*rest)
        elif tag == "refused":
            self._refused(rest[0], error_from_plain(rest[1]), rest[2])
        elif tag == "exists":
            self._exists[rest[0]] = rest[1]
        elif tag == "reply":
            self._replied(*rest)
        else:
            return False
        return True

    def _ended(self, run_id: str, outcome: dict[str, Any]) -> None:
        for wish in list(self._wishes.get(run_id, ())):
            if wish.request.wait and not wish.answer.done():
                wish.answer.set_result(outcome)

    def _refused(self, run_id: str, problem: PerdureError, content: list[Any]) -> None:
        """The last one that asked for this is refused. Those before it were answered in their turn, and others asked for something else."""
        for wish in reversed(self._wishes.get(run_id, ())):
            if content_of(wish.request) == content and not wish.answer.done():
                self._refuse(wish, problem)
                return

    def _refuse(self, wish: _Wish, problem: PerdureError) -> None:
        if isinstance(problem, RunBeingCleared):
            self._abandon(
                wish, wish.answer
            )  # until it is asked for again it is not waited for: its end would be another's
            self._tasks.start(self._utter_later(wish))
            return
        wish.answer.set_exception(problem)
        wish.answer.exception()  # of many refused at once only the first is heard of; that is no mistake

    async def _utter_later(self, wish: _Wish) -> None:
        pause_ms = backoff_ms(wish.tries, AGAIN_FIRST_MS, AGAIN_MOST_MS)
        await asyncio.sleep(jittered_ms(pause_ms, self._dice.roll()) / 1000)
        wish.tries += 1
        if not wish.answer.done():
            self._utter([wish])

    def _replied(self, ref: str, ok: bool, value: Any) -> None:
        asked = self._asks.pop(ref, None)
        if asked is None or asked[1].done():
            return
        if ok:
            asked[1].set_result(value)
        else:
            asked[1].set_exception(error_from_plain(value))

    def ask_again(self) -> list[list[Any]]:
        """What a new supervisor life must be told again: every question without an answer, calls marked as asked before."""
        again = []
        for said, _future in self._asks.values():
            if said[2] == "call":
                said[3][-1] = True
            again.append(said)
        waits = self.waits
        if waits:  # behind every request that is still under way, so what is unknown then is gone
            again.append(["wait", waits])
        return again
