"""Transitions that many tasks make at the same time are committed together: the cost of a commit is the statement, not its rows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from perdure.actors.code.author_call import tried
from perdure.actors.jobs.fiber_store import FiberStore
from perdure.actors.life.life import Life
from perdure.ledger import StorageError
from perdure.ledger.storage.cabinet import Transaction

T = TypeVar("T")
Job = Callable[["Transaction"], Any]
REST_S_MAX = 0.01
AT_ONCE_MAX = 100  # so that nobody waits long for the loop


class GroupCommit:
    """What waits to be committed.

    Args:
        is_patient: whether there is much to do that nobody waits for. Then others have the loop for as long as each commit took.
    """

    def __init__(self, life: Life, store: FiberStore, is_patient: Callable[[], bool]) -> None:
        self._life, self._store, self._is_patient = life, store, is_patient
        self._waiting: deque[tuple[Job, asyncio.Future[Any]]] = deque()
        self._is_busy = False

    async def __call__(self, job: Callable[[Transaction], T]) -> T:
        """Do this in a transaction with others; durable on return. It must not raise, for it would take the others with it."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, done))
        if not self._is_busy:
            self._is_busy = True
            self._life.spawn(self._commit_all())
        return await done

    async def _commit_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            begun_s = loop.time()
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), AT_ONCE_MAX))]
            results, problem = await tried(self._commit([job for job, _ in group]))
            for place, (_, done) in enumerate(group):
                if done.done():
                    continue
                if results is not None:
                    done.set_result(results[place])
                else:
                    done.set_exception(problem or StorageError(self._life.agent_id, "nothing was committed"))
            await asyncio.sleep(min(REST_S_MAX, loop.time() - begun_s) if self._is_patient() else 0)
        self._is_busy = False

    async def _commit(self, jobs: list[Job]) -> list[Any]:
        return self._store.change(lambda transaction: [job(transaction) for job in jobs])
