"""Authors' methods inside one transaction: so mail is handled, and so the callbacks of schedules and of the queue are called.

The transaction holds what says that the work is done (the inbox row, the row of the schedule), everything that the methods wrote, and
the outbox rows of everything they asked for. Killed before the commit, nothing happened, and the work is found again. Killed after it, it
is found done. So whatever the methods do by way of the agent happens exactly once, however often they are called.

A method that is overtaken by other work of its agent is rolled back and called again; it has not failed. One that does not return
within `handler_timeout_ms` has.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple

from perdure.actors.code.author_call import in_time, in_words, is_async, staying, tried
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.life import Life
from perdure.actors.life.outbox import Outbox
from perdure.actors.ports import KillPoint
from perdure.actors.retries import despite_more_conflicts
from perdure.ledger import StaleIncarnation, StorageConflict
from perdure.ledger.storage.agent_storages import Transaction

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
    """What went wrong, as a person reads it. The log has all of it."""
    life.log(what, f"a {what}", problem)
    if isinstance(problem, _TookTooLong):
        return f"the {what} did not return within {life.limits.handler_timeout_ms} ms"
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
    try:
        most_ms = min(piece.timeout_ms, life.limits.handler_timeout_ms)
        await in_time(_call(life, transaction, piece), most_ms, _TookTooLong())
        life.faults.at(KillPoint.MID_HANDLER, piece.name)
        with transaction.active():
            piece.seal(transaction)
        life.faults.at(KillPoint.BEFORE_HANDLER_COMMIT, piece.name)
        await outbox.commit(transaction)
    except BaseException:
        transaction.rollback()
        raise
    life.faults.at(KillPoint.AFTER_HANDLER_COMMIT, piece.name)


async def _call(life: Life, transaction: Transaction, piece: WorkPiece) -> None:
    with transaction.active():
        steps = piece.steps(transaction)
    if any(is_async(method) for method, _, _ in steps):
        for method, args, activity in steps:
            with transaction.active(), at_work(activity):
                await outcome(method(*args))
    elif steps:
        await life.threads.run(partial(staying, lambda: _call_all(transaction, steps)))


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


async def outcome(given: object) -> None:
    if inspect.isawaitable(given):
        await given
