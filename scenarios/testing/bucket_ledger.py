"""The real store of a bucket in the simulated world, beside a ledger that is told what was acknowledged.

What may leave a process rests on what its store has acknowledged, so that is what must be in the bucket, whatever dies:

- An acknowledged commit is in its slot.
- A life that begins finds every acknowledged commit, and the last patch of every storage.
- A commit that was under way when its life died is there or not. If the next life finds it, it counts.

It is a module of its own because it needs `perdure[bucket]`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from shutil import rmtree

from perdure.actors import World
from perdure.actors.sim_world.sim_bucket import CalmBucket, SimBucket, SimObjects
from perdure.actors.sim_world.simulation import on_death
from perdure.ledger import Boot, Patch, Payload, Record, Row, commits_in, patch_of
from perdure.ledger.slots import record_of, slot_key
from perdure.ledger.store.bucket import BucketRefused
from perdure.ledger.store.bucket_store import BucketStore
from perdure.scenarios.testing.checks import Ledger, unlike_the_snapshot

__all__ = ["BucketLedger", "BucketRefused"]

ROOTS_S = (0.0, 3.0, 30.0)
"""After how long a root is due, of which each life draws one. Bytes do not count: how many a storage has is not the same in each play."""
KEPT_S = (0.0, 0.0, 5.0)
"""For how long history is kept, likewise."""


class BucketLedger:
    """What outlives the lives of a simulated supervisor whose ledger is in a bucket.

    Args:
        directory: for the cache of the machine, and for one to look with.
        ledger: is told what was acknowledged.
    """

    def __init__(self, directory: Path, ledger: Ledger) -> None:
        self.objects, self.ledger = SimObjects(), ledger
        self.reached = 0  # the last slot that the ledger knows
        self._directory = directory

    def life(self, world: World, cache_lost: float) -> BucketStore:
        # With the probability `cache_lost` its machine is a new one.
        cache = self._directory / "machine"
        if cache_lost and world.dice.roll() < cache_lost:
            rmtree(cache, ignore_errors=True)
        store = WatchedStore(cache / "ledger", SimBucket(self.objects, world), self, world)
        on_death(store.end)
        return store

    def unlike(self) -> Iterator[str]:
        """What a reader who has nothing but the bucket finds otherwise than it was acknowledged."""
        cache = self._directory / "reader"
        with closing(BucketStore(cache / "ledger", CalmBucket(self.objects), looks=True)) as store:
            yield from unlike_the_snapshot(store, self.ledger.shadow)
            agents = self.ledger.storages_of("")
            if sorted(store.storages_of("")) != sorted(agents):
                yield f"there are storages of {store.storages_of('')} instead of {agents}"
            yield from (
                f"the storage of {agent} is another one than was acknowledged"
                for agent in agents
                if store.storage(agent) != self.ledger.storage(agent)
            )

    def catch_up(self, upto: int) -> None:
        for number in range(self.reached + 1, upto + 1):
            key = slot_key(number)
            record = record_of(key, self.objects.held[key])
            commits = [] if record.is_fence else commits_in(record.body)
            for commit in commits:
                self.ledger.append(
                    commit.rows, [Payload(each.run_id, each.part, each.body) for each in commit.payloads]
                )
            self.ledger.append([], [], [patch_of(piece) for piece in record.pieces])
        self.reached = upto


class WatchedStore(BucketStore):
    """One life's store, compared with what was acknowledged before."""

    root_bytes = sys.maxsize

    def __init__(self, path: Path, bucket: SimBucket, ledger: BucketLedger, world: World) -> None:
        clock, die = world.clock, Random(world.dice.token())
        super().__init__(
            path, bucket, now_s=lambda: clock.steady_ms() / 1000, wall_ms=clock.now_ms, token=die.randbytes
        )
        self._all, self.root_s, self.keep_s = ledger, die.choice(ROOTS_S), die.choice(KEPT_S)

    def boot(self) -> Boot:
        boot = super().boot()
        fence = self._life.fence
        if fence <= self._all.reached:
            self._complain(f"a life has begun in slot {fence}, and slot {self._all.reached} was acknowledged")
            return boot
        self._all.catch_up(fence)
        ledger = self._all.ledger
        if self._mark.seq != ledger.shadow.seq:
            self._complain(f"a life has begun with {self._mark.seq} facts, and {ledger.shadow.seq} were acknowledged")
        found = {agent: self.patches_of(agent) for agent in self.storages_of("")}
        known = {agent: ledger.patches_of(agent) for agent in ledger.storages_of("")}
        if found != known:
            self._complain(f"a life has begun with other patches than were acknowledged: {found} instead of {known}")
        return boot

    def append(self, rows: Sequence[Row], payloads: list[Payload], patches: Sequence[Patch] = ()) -> None:
        super().append(rows, payloads, patches)
        slot = self._life.chain.slot
        if not self._all.objects.held.get(slot_key(slot), b"").endswith(self._life.chain.digest):
            self._complain(f"slot {slot} was acknowledged, and is not in the bucket")
        self._all.ledger.append(rows, payloads, patches)
        self._all.reached = slot

    def checkpoint(self, meta: bytes, upto_seq: int, records: list[Record], forgotten: list[str]) -> None:
        # what is deleted may be there again after a death, and must not be missed
        self._all.ledger.checkpoint(meta, upto_seq, records, forgotten)
        super().checkpoint(meta, upto_seq, records, forgotten)

    def end(self) -> None:
        # The process is dead: its files are closed as they are.
        self._release()

    def _complain(self, what: str) -> None:
        self._all.ledger.violations.append(what)
