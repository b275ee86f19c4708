"""What a host or a client has asked of the supervisor and waits for: ends of runs, acceptances, and answers.

It lives in memory only. After a new hello everything that is still waited for is asked again, under the same ids.
"""

from __future__ import annotations

import asyncio
from typing import Any

from actors.peer import Peer
from actors.ports import Dice
from actors.wire import error_from_plain, message
from ledger import PerdureError, Request


class Asking:
    """The open questions of one process."""

    def __init__(self, dice: Dice) -> None:
        self.peer: Peer
        self._dice = dice
        self._ends: dict[str, list[asyncio.Future[Any]]] = {}
        self._acceptances: dict[str, list[asyncio.Future[Any]]] = {}
        self._exists: dict[str, str] = {}
        self._asks: dict[str, tuple[list[Any], asyncio.Future[Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def waits(self) -> list[str]:
        """The runs whose ends are waited for."""
        return list(self._ends)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is waited for."""
        return not (self._ends or self._acceptances or self._asks)

    def begin(self, request: Request) -> asyncio.Future[Any]:
        """Ask for a run: the future of its end, or for a detached one of its acceptance."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        run_id = request.run_id
        if request.wait:
            self._ends.setdefault(run_id, []).append(future)
            future.add_done_callback(lambda done: self._abandon(run_id, done))
            self.peer.push(message(request))
        else:
            self._acceptances.setdefault(run_id, []).append(future)
            self._spawn(self._accept([request]))
        return future

    def begin_many(self, requests: list[Request]) -> list[asyncio.Future[Any]]:
        """Ask for many runs in one go; the detached ones among them are accepted together."""
        futures = [self.begin(request) for request in requests if request.wait]
        detached = [request for request in requests if not request.wait]
        if not detached:
            return futures
        accepted: dict[str, asyncio.Future[Any]] = {}
        for request in detached:
            future = accepted[request.run_id] = asyncio.get_running_loop().create_future()
            self._acceptances.setdefault(request.run_id, []).append(future)
        self._spawn(self._accept(detached))
        waited = iter(futures)
        return [next(waited) if request.wait else accepted[request.run_id] for request in requests]

    def _abandon(self, run_id: str, future: asyncio.Future[Any]) -> None:
        """Nobody waits with this future any more."""
        waiting = self._ends.get(run_id)
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._ends[run_id]

    async def _accept(self, requests: list[Request]) -> None:
        for request in requests[:-1]:
            self.peer.push(message(request))
        await self.peer.durable(message(requests[-1]))
        for request in requests:
            status = self._exists.pop(request.run_id, None)
            for future in self._acceptances.pop(request.run_id, ()):
                if not future.done():
                    future.set_result(status)

    async def ask(self, name: str, *args: Any) -> Any:
        """Ask a question and wait for its answer. Raises the `PerdureError` with which it was refused."""
        ref = self._dice.token()
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        said = ["ask", ref, name, list(args)]
        self._asks[ref] = (said, future)
        self.peer.push(said)
        try:
            return await future
        finally:
            self._asks.pop(ref, None)

    def receive(self, said: list[Any]) -> bool:
        """Take a message of the supervisor, if it answers something here."""
        tag, *rest = said
        if tag == "end":
            for future in self._ends.pop(rest[0], ()):
                if not future.done():
                    future.set_result(rest[1])
        elif tag == "refused":
            self._refused(rest[0], error_from_plain(rest[1]))
        elif tag == "exists":
            self._exists[rest[0]] = rest[1]
        elif tag == "reply":
            self._replied(*rest)
        else:
            return False
        return True

    def _refused(self, run_id: str, problem: PerdureError) -> None:
        for future in [*self._ends.pop(run_id, ()), *self._acceptances.pop(run_id, ())]:
            if not future.done():
                future.set_exception(problem)
                future.exception()  # of many refused at once only the first is heard of; that is no mistake

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
        if self._ends:  # behind every request that is still under way, so what is unknown then is gone
            again.append(["wait", self.waits])
        return again

    def _spawn(self, job: Any) -> None:
        task = asyncio.get_running_loop().create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
