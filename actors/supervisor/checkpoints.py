"""Checkpoints: the snapshot follows the facts, and cleared runs go, without a turn waiting for it. Ended runs that are old are cleared.

A checkpoint has four steps, and turns go on during the first and the third:

1. The storages of what was cleared are deleted, on a thread (these agents are never woken again), and rows of runs are made a few at a
   time.
2. Between two turns, the *cut* takes what is true: all facts behind it are durable.
3. The store writes it on a thread.
4. Between two turns, what was cleared leaves memory.

Ended runs that are not asked for are let go of afterwards, a few between each two turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from perdure.actors.ports import KillPoint, World
from perdure.actors.supervisor.replication import Replication
from perdure.actors.supervisor.snapshot_loader import SnapshotLoader
from perdure.actors.supervisor.storage_carrier import StorageCarrier
from perdure.actors.tasks import Tasks
from perdure.actors.upkeep import upkeep_pause
from perdure.ledger import (
    Activation,
    AgentForgotten,
    ExpireRuns,
    Fact,
    Record,
    Stimulus,
    Store,
    View,
    activation_from,
    dirty_records,
    ended_in,
    is_awaited,
    leave_out_passers,
    meta_of,
    prepare_rows,
    rows_to_make,
    run_from,
)
from perdure.ledger.storage.agent_storages import AgentStorages
from perdure.policies import PASS, SLICE, Due, Limits, retention_due, snapshot_age_max_ms

_ROWS_AT_ONCE = 50  # made in half a millisecond; a turn goes on in between
_ROWS_AT_ONCE_MAX = 1_600  # more than a turn has messages, by default
_LET_GO_AT_ONCE = 500  # runs that leave memory, in some two milliseconds
_FEW = 500  # rows that the cut makes itself
_PASSES_MAX = 12  # each finds what has changed since the one before
_SUSPENDED_S = 30.0  # for so long the wish of a backup holds
_AFTER_PASS_MS = 100  # until it is looked whether what was cleared is gone
_PAUSE_S = 30.0  # before the oldest are looked at again
_FAMILIES_MAX = 10_000
_BEGINNING = (-1, "")
_FOLLOWS_FROM = 1_000  # facts that the archive lacks before it follows; fewer wait for a question or a checkpoint
_WEIGHS_AS_FACT = 16 << 10  # bytes of payloads, which are in memory until then


class Checkpoints:
    """The checkpoints of one life of the supervisor.

    Args:
        carrier: of the agents' storages, if they are carried.
        behind: how many facts of earlier lives came after the snapshot.
        append: makes facts durable together.
        wake: lets the next turn begin.
        replication: is told of agents whose storages were deleted.
    """

    def __init__(
        self,
        world: World,
        tasks: Tasks,
        view: View,
        store: Store,
        agent_storages: AgentStorages,
        limits: Limits,
        snapshot_loader: SnapshotLoader,
        *,
        carrier: StorageCarrier | None,
        behind: int,
        append: Callable[[Sequence[Fact]], Awaitable[None]],
        wake: Callable[[], None],
        replication: Replication | None,
    ) -> None:
        self.forgetting: list[str] = []  # runs that were cleared, and agents that were deleted
        self._world, self._tasks, self._view = world, tasks, view
        self._store, self._agent_storages = store, agent_storages
        self._limits, self._snapshot_loader, self._append, self._wake = limits, snapshot_loader, append, wake
        self._carrier, self._replication = carrier, replication
        self._facts, self._unfollowed = behind, 0
        self._quiet_since_s = 0.0
        self._begun_s = asyncio.get_running_loop().time()
        self._due, self._keeps_more = behind > limits.checkpoint_facts, False
        self._next: Callable[[], Awaitable[None]] | None = None  # the step that waits for the end of a turn
        self._at_rest = asyncio.Event()  # no checkpoint is under way
        self._at_rest.set()
        self._taken, self._suspended_until_s = 0, float("-inf")

    def committed(self, count: int, size: int = 0) -> None:
        """So many facts are durable, with payloads of so many bytes."""
        self._facts += count
        self._unfollowed += count + size // _WEIGHS_AS_FACT
        self._quiet_since_s = asyncio.get_running_loop().time()
        if self._unfollowed >= _FOLLOWS_FROM and self.suspended is None:
            self._unfollowed = 0
            self._tasks.start(self._world.threads.archive(self._store.follow))

    # How many checkpoints this life has taken; None while one is under way.
    @property
    def quiet(self) -> int | None:
        return self._taken if self._at_rest.is_set() else None

    # How many checkpoints this life had taken, if none is taken now.
    @property
    def suspended(self) -> int | None:
        return self.quiet if asyncio.get_running_loop().time() < self._suspended_until_s else None

    # Let the snapshot be as it is for a while, once the checkpoint under way is done. Returns how many this life has taken.
    async def suspend(self) -> int:
        self._suspended_until_s = asyncio.get_running_loop().time() + _SUSPENDED_S
        await self._at_rest.wait()
        await self._world.threads.archive(lambda: None)  # the archive may have begun to follow before
        self._suspended_until_s = asyncio.get_running_loop().time() + _SUSPENDED_S
        return self._taken

    def sweep(self, now_s: float) -> None:
        """Whether a checkpoint is due: in a quiet moment, when there is something to delete, after many facts, or when the last one is too
        old for what retention has to clear."""
        quiet = now_s - self._quiet_since_s >= self._limits.checkpoint_idle_ms / 1000
        old = now_s - self._begun_s >= snapshot_age_max_ms(self._limits, ended_in(self._view)) / 1000
        self._due = bool(self.forgetting) or self._facts > (0 if quiet or old else self._limits.checkpoint_facts)
        if self._due:
            self._wake()

    @property
    def has_step(self) -> bool:
        return self._next is not None or self._may_begin or self._keeps_more

    @property
    def _may_begin(self) -> bool:
        return self._due and self._at_rest.is_set() and self.suspended is None

    async def between_turns(self) -> None:
        if self._next is not None:
            step, self._next = self._next, None
            await step()
        elif self._may_begin:
            self._due = False
            self._at_rest.clear()
            self._taken += 1
            self._begun_s = asyncio.get_running_loop().time()
            self._tasks.start(self._prepare())
        elif self._keeps_more:
            self._let_go()

    async def _prepare(self) -> None:
        view = self._view
        due, self.forgetting = dict.fromkeys(self.forgetting), []
        deleted = [key for key in due if await self._delete(key)]
        if deleted and self._carrier is None:  # no fact may say so before
            await self._world.threads.archive(self._agent_storages.disk.settle)
        bite = _ROWS_AT_ONCE
        for _ in range(_PASSES_MAX):
            keys = rows_to_make(view)
            await self._bit_by_bit(prepare_rows, keys, bite)
            if len(keys) <= _FEW:
                break
            bite = min(2 * bite, _ROWS_AT_ONCE_MAX)  # more runs change the longer it takes
        await self._bit_by_bit(leave_out_passers, list(view.dirty_agents), bite)
        self._then(partial(self._cut, deleted))

    def _then(self, step: Callable[[], Awaitable[None]]) -> None:
        self._next = step
        self._wake()

    async def _bit_by_bit(self, step: Callable[[View, list[str]], None], keys: list[str], bite: int) -> None:
        for first in range(0, len(keys), bite):
            step(self._view, keys[first : first + bite])
            await asyncio.sleep(0)

    async def _cut(self, deleted: list[str]) -> None:
        view = self._view
        agents = [AgentForgotten(key) for key in deleted if key in view.doomed]
        if self._carrier is not None:
            for key in deleted:
                self._carrier.delete(self._agent_of(key))
        if agents or self._carrier is not None:
            await self._append(agents)
            self._wake()  # the next agent of such a name may have been called
        forgotten = [key for key in deleted if view.may_be_forgotten(key)]
        children = [view.runs[run_id].child for run_id in forgotten]
        for run_id in forgotten:
            view.dirty_runs.pop(run_id, None)
            view.dirty_agents.pop(view.runs[run_id].child, None)
            view.want_no_more(view.runs[run_id].child)  # its storage is gone, so it is not woken to tidy up
            for key in view.runs[run_id].mail_ids:  # a superseded mail must not come back by way of the snapshot
                view.mail.pop(key, None)
        await self._snapshot_loader.look_up_reports(view.dirty_agents)
        meta, upto_seq, records = meta_of(view), view.seq, dirty_records(view)
        finish = partial(self._finish, forgotten, dict(view.asleep), list(view.deleted))
        view.dirty_runs, view.dirty_agents, view.dirty_mail = {}, {}, {}
        self._facts = 0
        self._world.faults.at(KillPoint.BEFORE_CHECKPOINT)
        write = partial(self._store.checkpoint, meta, upto_seq, records, [*forgotten, *children])
        self._tasks.start(self._write(write, finish))

    async def _delete(self, key: str) -> bool:
        # False if it is too early.
        if key not in self._view.doomed and not self._view.may_be_forgotten(key):
            return False
        agent = self._agent_of(key)
        if self._carrier is None:
            await self._world.threads.archive(partial(self._agent_storages.forget_family, agent, settle=False))
            if self._replication is not None:
                self._replication.touch([agent])
        self._world.faults.at(KillPoint.MID_CLEAR, agent)
        return True

    def _agent_of(self, key: str) -> str:
        return key if key in self._view.doomed else self._view.runs[key].child

    async def _write(self, write: Callable[[], None], finish: Callable[[], Awaitable[None]]) -> None:
        await self._world.threads.archive(write)
        self._world.faults.at(KillPoint.AFTER_CHECKPOINT)
        self._then(finish)

    async def _finish(self, forgotten: list[str], asleep: dict[str, Activation], gone: list[str]) -> None:
        view = self._view
        self._at_rest.set()
        self._snapshot_loader.has_snapshot = True
        for agent in [key for key, kept in asleep.items() if view.asleep.get(key) is kept]:
            del view.asleep[agent]
        for agent in gone:
            del view.deleted[agent]
        for run_id in forgotten:
            view.forget_run(run_id)
        self._let_go()
        self._wake()  # the next run of an id that is free now may have been asked for

    def _let_go(self) -> None:
        # The others follow after later turns, so no turn waits long.
        gone = self._view.let_go_of_oldest(self._limits.retained_in_memory, _LET_GO_AT_ONCE)
        self._snapshot_loader.has_archive = self._snapshot_loader.has_archive or gone > 0
        self._keeps_more = gone == _LET_GO_AT_ONCE
        if self._keeps_more:
            self._wake()


# Candidates come from the snapshot, oldest end first. Which of them are still needed is decided in the next turn (`ledger.protocol`), and
# these are looked at again only after all others. Nothing of this is durable but the tombstones: a death costs a look.
class RunExpiry:
    """Clears ended runs that are old, or too many: a slice in each turn of a pass, while nothing waits for it."""

    def __init__(
        self, world: World, view: View, store: Store, limits: Limits, snapshot_loader: SnapshotLoader, checkpoints: Checkpoints,
        now_ms: Callable[[], int], report: Callable[[Stimulus], None],
    ) -> None:  # fmt: skip
        self._world, self._view, self._store, self._limits = world, view, store, limits
        self._snapshot_loader, self._checkpoints = snapshot_loader, checkpoints
        self._now_ms, self._report = now_ms, report
        self._after = _BEGINNING  # up to which run all were looked at
        self._needed = 0  # how many of these are
        self._anew, self._anew_at_s = 0, float("-inf")  # with which snapshot that began, and when it begins again
        self._next_ms = -1  # when the next one ended, if that is known
        self._spent: int | None = None  # how many checkpoints had been taken when the snapshot had no more
        self._deletes = False  # what a pass has cleared is not gone yet
        self._asked: ExpireRuns | None = None
        self._answered = asyncio.Event()

    async def serve(self) -> None:
        """Make passes (`policies.retention`), each as soon as what the one before has cleared is gone."""
        while True:
            await self._pass()
            await upkeep_pause((_AFTER_PASS_MS if self._deletes else self._limits.sweep_ms) / 1000)

    def seen(self, stimuli: Sequence[Stimulus]) -> None:
        """These were decided in a turn that is over."""
        if any(each is self._asked for each in stimuli):
            self._answered.set()

    async def _pass(self) -> None:
        taken = self._checkpoints.quiet
        self._deletes = self._deletes and (bool(self._view.cleared) or taken is None)
        if self._view.cleared or taken is None or not self._may_have_more(taken):
            return
        search = partial(self._store.settled_before, float("inf"), self._after, PASS)
        candidates = await self._world.threads.archive(search)
        for first in range(0, len(candidates), SLICE):
            slice_ = self._next(candidates[first : first + SLICE])
            free = [each for each in slice_ if not is_awaited(self._view, run_from(each))]
            families = await self._families(free)
            called = await self._called(families)
            if not slice_ or self._checkpoints.quiet != taken:  # else some of them may have been deleted meanwhile
                break
            self._snapshot_loader.remember(families)
            if free:
                await self._decided(ExpireRuns([record.key for record in free], called))
            self._after = _place_of(slice_[-1])
            self._needed += sum(each.key not in self._view.cleared for each in slice_)
        later = [each for each in candidates if _place_of(each) > self._after]
        self._next_ms = _place_of(later[0])[0] if later else -1
        self._spent = taken if not later and len(candidates) < PASS else None
        self._deletes = bool(self._view.cleared)
        if self._deletes:
            self._checkpoints.sweep(asyncio.get_running_loop().time())

    # Whether there may be one in the snapshot. Those that were needed are looked at again with the next one, if they are not many.
    def _may_have_more(self, taken: int) -> bool:
        due, now_s = self._due(), asyncio.get_running_loop().time()
        has_next = due.any and taken != self._spent and due.has(self._next_ms, 0)
        if self._needed > PASS:
            is_anew = not has_next and now_s >= self._anew_at_s
        else:
            is_anew = now_s >= self._anew_at_s or (due.surplus > 0 and taken != self._anew)
        if due.any and is_anew:
            self._after, self._needed, self._anew, self._anew_at_s = _BEGINNING, 0, taken, now_s + _PAUSE_S
        return due.any and (is_anew or has_next)

    def _due(self) -> Due:
        return retention_due(self._now_ms(), ended_in(self._view), self._limits)

    def _next(self, candidates: list[Record]) -> list[Record]:
        # If the next candidate is not due, none after it is.
        due = self._due()
        return [each for nth, each in enumerate(candidates) if due.has(_place_of(each)[0], nth)]

    async def _decided(self, asked: ExpireRuns) -> None:
        # No turn has two slices.
        self._asked = asked
        self._answered.clear()
        self._report(asked)
        await self._answered.wait()

    async def _families(self, records: list[Record]) -> list[Record]:
        found = due = records
        while due and len(found) < _FAMILIES_MAX:
            children = [run_from(record).child for record in due]
            due = await self._world.threads.archive(partial(self._store.runs_of, children, _FAMILIES_MAX))
            found = [*found, *due]
        return found

    async def _called(self, records: list[Record]) -> list[str]:
        children = [run_from(record).child for record in records]
        rows = await self._world.threads.archive(partial(self._store.records, "agents", children)) if children else []
        return [row.key for row in rows if row.body and activation_from(row).called]


def _place_of(record: Record) -> tuple[int, str]:
    return run_from(record).ended_at_ms, record.key
