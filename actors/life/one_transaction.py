"""Authors' methods inside one transaction: so mail is handled, so the callbacks of schedules and of the queue are called, and so what an
agent keeps is migrated.

The transaction holds what says that the work is done (the inbox row, the row of the schedule), everything that the methods wrote, and
the outbox rows of everything they asked for. Killed before the commit, nothing happened, and the work is found again. Killed after it, it
is found done. So whatever the methods do by way of the agent happens exactly once, however often they are called.

A method that is overtaken by other work of its agent is rolled back and called again; it has not failed. One that does not return
within `handler_timeout_ms` has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from functools import partial
from typing import Final, NamedTuple

from perdure.actors.code.author_call import in_time, in_words, is_async, result_of, staying, tried
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.life import Life
from perdure.actors.life.outbox import Outbox
from perdure.actors.ports import KillPoint
from perdure.actors.retries import despite_more_conflicts
from perdure.ledger import MigrationFailed, StaleIncarnation, StorageConflict, StorageTooNew, pack, unpack
from perdure.ledger.storage.agent_storages import Transaction
from perdure.ledger.storage.records import VERSION

Step = tuple[Callable[..., object], tuple[object, ...], Activity]
"""A method, its arguments, and for whom it works."""


class WorkPiece(NamedTuple):
    """A piece of work for one transaction.

    `steps` says what is called, anew in each try, and may write what the methods shall find; `seal` writes what is left when they have
    returned. `name` is told at the kill points. `timeout_ms` is `Limits.handler_timeout_ms`, or less.
    """

    name: str
    steps: Callable[[Transaction], list[Step]]
    seal: Callable[[Transaction], None]
    timeout_ms: float = math.inf


async def done_in_one(
    life: Life, outbox: Outbox, piece: WorkPiece, turn: AbstractAsyncContextManager[object] | None = None
) -> Exception | None:
    """Do a piece of work, again while others get in its way. Returns what went wrong for good, if anything.

    Pieces that may meet each other share a lock, `turn`: those that were overtaken go on in it, one after the other, lest a batch in which
    each try has only one winner use up all its tries. Raises `StaleIncarnation` when this life is over.
    """
    problem = await _once(life, outbox, piece)
    if not isinstance(problem, StorageConflict):
        return problem
    async with turn or nullcontext():
        return await despite_more_conflicts(partial(_once, life, outbox, piece))


def failure(life: Life, problem: Exception, what: str) -> str:
    # The log has all of it.
    life.log(what, f"a {what}", problem)
    if isinstance(problem, _TookTooLong):
        words = f"the {what} did not return within {life.limits.handler_timeout_ms} ms"
        return words if problem.__cause__ is None else f"{words}; {problem.__cause__}"
    return in_words(problem)


class _TookTooLong(TimeoutError):
    """The methods did not return in time. They may raise a `TimeoutError` of their own."""


async def _once(life: Life, outbox: Outbox, piece: WorkPiece) -> Exception | None:
    _, problem = await tried(_transact(life, outbox, piece))
    if isinstance(problem, StaleIncarnation):
        raise problem
    return problem


async def _transact(life: Life, outbox: Outbox, piece: WorkPiece) -> None:
    transaction = life.storage.begin()
    most_ms = min(piece.timeout_ms, life.limits.handler_timeout_ms)
    try:
        with transaction.active():
            steps = piece.steps(transaction)
        is_sync = not any(is_async(method) for method, _, _ in steps)
        if not is_sync:
            await in_time(life.bounded(_call_on_loop(life, transaction, steps)), most_ms, _TookTooLong())
        # In this turn no sync method of the agent is between what it reads and what it writes.
        async with life.threads.turn(life) as turn:
            if is_sync and steps:
                await in_time(_call_on_thread(life, transaction, steps, turn), most_ms, _TookTooLong())
            life.faults.at(KillPoint.MID_HANDLER, piece.name)
            with transaction.active():
                piece.seal(transaction)
            life.faults.at(KillPoint.BEFORE_HANDLER_COMMIT, piece.name)
            await outbox.commit(transaction)
    except BaseException:
        transaction.rollback()
        raise
    life.faults.at(KillPoint.AFTER_HANDLER_COMMIT, piece.name)


async def _call_on_loop(life: Life, transaction: Transaction, steps: list[Step]) -> None:
    for method, args, activity in steps:
        with transaction.active(), at_work(activity), life.code.entered(method):
            await result_of(partial(method, *args))


async def _call_on_thread(life: Life, transaction: Transaction, steps: list[Step], turn: object) -> None:
    with life.code.entered(steps[0][0]) as call:
        job = partial(staying, lambda: _call_all(transaction, steps))
        await call.on_thread(lambda job: life.threads.run(job, turn), job)


def _call_all(transaction: Transaction, steps: list[Step]) -> None:
    with transaction.active():
        for method, args, activity in steps:
            with at_work(activity):
                method(*args)


@contextmanager
def at_work(activity: Activity) -> Iterator[None]:
    token = ACTIVITY.set(activity)
    try:
        yield
    finally:
        ACTIVITY.reset(token)


# ---------------------------------------------------------------- migration
# Versions of what an agent keeps: `class Till(Agent, version=2)` and `migrate`.
#
# The version stands in the storage. A life of a newer class calls `migrate` first of all, in one transaction that also writes the new
# version: killed before its commit, nothing happened, and the next life calls it again; killed after it, it is done. If it raises,
# everything stays as it was, and the agent does not come up: callers get the error, its mail is parked in the end, and a run that it
# carries is parked. An older class than the storage's is refused, because it does not know what it would find.

FIRST: Final = 1  # of a class that says none, and of a storage that was written for one


async def bring_up_to_date(life: Life, outbox: Outbox) -> None:
    """Bring what the agent keeps to the version of its class. Raises `MigrationFailed`, `StorageTooNew`."""
    wanted = type(life.agent).__perdure_version__
    is_new = not life.has_storage
    kept = None if is_new else life.storage.document(VERSION, "")
    version = wanted if is_new else FIRST if kept is None else int(unpack(kept))
    if version > wanted:
        raise StorageTooNew(life.agent_id, version, wanted)
    if version == wanted and (kept is not None or wanted == FIRST):
        return

    def steps(_: Transaction) -> list[Step]:
        activity = Activity(origin=f"{life.agent_id}/migrate/{wanted}")
        return [] if is_new else [(life.agent.migrate, (version,), activity)]

    problem = await done_in_one(
        life, outbox, WorkPiece("migrate", steps, lambda done: done.put(VERSION, "", pack(wanted)))
    )
    if problem is not None:
        life.log("hook", f"migrate from version {version} to {wanted}", problem)
        raise MigrationFailed(life.agent_id, version, wanted, in_words(problem)) from problem
