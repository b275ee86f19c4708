"""A supervisor whose directory is followed: cuts lie between its decisions, and answers wait when the bucket is too far behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from perdure import Agent, BucketUnreachable, exposed
from perdure.actors import Client
from perdure.actors.ports import Fleet, World
from perdure.ledger import LedgerDamaged, LedgerError, Payload, ReplicaSettings, Row, StorageError, expand_rows
from perdure.ledger.store.store import Record
from perdure.scenarios.testing.checks import Ledger
from perdure.scenarios.testing.laboratory import Laboratory


class Counter(Agent):
    @exposed
    def add(self, by: int) -> int:
        self.state["n"] = self.state.get("n", 0) + by
        return int(self.state["n"])


class Quick(Agent):
    """Ends at once."""

    async def run(self, input: None) -> int:
        return 1


class Followed(Ledger):
    """A ledger in memory that tells what it was asked to do for its replica."""

    is_followed = True

    def __init__(self) -> None:
        super().__init__()
        self.settings = ReplicaSettings("s3://b/p", 500, 2_000)
        self.new: list[tuple[int, float]] = []  # facts, and when they came
        self.due: list[tuple[int, float]] = []
        self.written_s: float | None = None  # since when a storage has been written, which is not there
        self.checkpoints = self.there = self.rests = 0
        self.looked: list[set[str]] = []
        self.cuts: list[set[str]] = []
        self.away = False
        self.slow_s = 0.0  # a put takes so long, and agents write meanwhile
        self.unreadable = ""
        self.refusal: LedgerError | None = None
        self.untidy: LedgerError | None = None
        self.at_prepare: Callable[[], None] = lambda: None
        self.at_cut: Callable[[], None] = lambda: None

    def append(self, rows: Sequence[Row], payloads: list[Payload], patches: Sequence[Any] = ()) -> None:
        super().append(rows, payloads, patches)
        if rows:
            self.new.append((len(expand_rows(rows)), asyncio.get_running_loop().time()))

    def checkpoint(self, meta: bytes, upto_seq: int, records: list[Record], forgotten: list[str]) -> None:
        super().checkpoint(meta, upto_seq, records, forgotten)
        self.checkpoints += 1

    @property
    def has_news(self) -> bool:
        return bool(self.new or self.due or self.written_s is not None)

    def behind_ms(self) -> float:
        oldest = [at_s for _, at_s in [*self.due, *self.new]] + [self.written_s] * (self.written_s is not None)
        return (asyncio.get_running_loop().time() - min(oldest)) * 1000 if oldest else 0.0

    def nothing_written(self) -> None:
        self.rests += 1

    def unreachable(self) -> BucketUnreachable | None:
        return BucketUnreachable("s3://b/p", 7.0, "connection refused", 2_000) if self.away else None

    def prepare(self, agents: Iterable[str] | None) -> None:
        self.looked.append(set(agents or ()))
        self.at_prepare()

    def cut(self, agents: Iterable[str]) -> None:
        self.at_cut()
        self.cuts.append(set(agents))
        self.looked[-1] |= set(agents)
        self.due += self.new
        self.new = []

    def put(self) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.there += sum(count for count, _ in self.due)
        self.due, self.written_s = [], None

    def tidy(self) -> None:
        if self.untidy is not None:
            raise self.untidy


class Threads:
    """Those of a process, but for what waits for the bucket."""

    def __init__(self, inner: Any, store: Followed) -> None:
        self._inner, self._store = inner, store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def run(self, job: Callable[[], Any]) -> Any:
        while job == self._store.put and self._store.away:
            await asyncio.sleep(0.1)
        slow_s = self._store.slow_s
        if job != self._store.put or not slow_s:
            return await self._inner.run(job)
        await asyncio.sleep(slow_s)
        await self._inner.run(job)
        self._store.written_s = asyncio.get_running_loop().time() - slow_s
        return None


class FollowedLaboratory(Laboratory):
    """A laboratory whose ledger is followed."""

    store: Followed

    def __init__(self) -> None:
        super().__init__(1)
        self.store = Followed()

    def _supervisor(self, world: World, fleet: Fleet) -> Any:
        return super()._supervisor(world._replace(threads=Threads(world.threads, self.store)), fleet)


def test_everything_that_is_decided_gets_there_and_only_what_may_have_changed_is_looked_at() -> None:
    with FollowedLaboratory() as laboratory:
        store = laboratory.store

        async def story(client: Client) -> None:
            await client.agent(Counter, "a").add(1)
            for at in range(5):
                assert (await client.run(Quick, run_id=f"r{at}")).ok
            await asyncio.sleep(2)
            assert store.there == store.facts_count
            looked = {agent.partition("@")[0] for each in store.looked for agent in each}
            assert {"a", "r0", "r4"} <= looked
            puts = len(store.looked)
            await asyncio.sleep(20)  # the agent sleeps by now
            rest = len(store.looked)
            await asyncio.sleep(60)
            assert len(store.looked) - rest < 5, "nothing is looked at when nothing happens"
            assert store.rests > 50, "and that counts as a look"
            assert rest > puts
            told = (await client.ask("ps", 0))["supervisor"]["replica"]
            assert told == {
                "url": "s3://b/p", "lag_ms": 500, "lag_max_ms": 2_000, "behind_ms": 0, "filled": True, "trouble": "",
            }  # fmt: skip

        laboratory.play(story)
        laboratory.settle()


def test_answers_wait_while_the_bucket_is_too_far_behind_and_new_work_is_refused_when_it_does_not_answer() -> None:
    with FollowedLaboratory() as laboratory:
        store = laboratory.store

        async def story(client: Client) -> None:
            agent = client.agent(Counter, "a")
            await agent.add(1)
            await asyncio.sleep(2)
            store.away = True
            assert (await client.run(Quick, run_id="soon")).ok, "the bucket may be as far behind as this"
            await asyncio.sleep(3)
            under_way = asyncio.ensure_future(client.run(Quick, run_id="late"))
            await asyncio.sleep(10)
            assert not under_way.done()
            with pytest.raises(BucketUnreachable, match="has not answered for 7 s"):
                await client.run(Quick, run_id="new")
            told = await client.ask("ps", 0)
            assert told["supervisor"]["replica"]["behind_ms"] > 10_000
            assert "connection refused" in told["supervisor"]["replica"]["trouble"]
            assert store.there < store.facts_count
            assert (await client.ask("wind_down"))["replica_behind"], "a stop waits for it"
            store.away = False
            assert (await under_way).ok, "what was accepted goes on by itself"
            await asyncio.sleep(10)
            assert store.there == store.facts_count
            assert "replica_behind" not in await client.ask("wind_down")

        laboratory.play(story)
        laboratory.settle()


def test_calls_are_not_answered_while_the_bucket_is_too_far_behind_with_what_agents_have_written() -> None:
    with FollowedLaboratory() as laboratory:
        store = laboratory.store

        async def story(client: Client) -> None:
            agent = client.agent(Counter, "a")
            await agent.add(1)
            await asyncio.sleep(2)
            store.away, store.written_s = True, asyncio.get_running_loop().time()
            assert await agent.add(1) == 2, "the bucket may be as far behind as this"
            assert not any(host.services.begins_nothing for host in laboratory.hosts.values())
            await asyncio.sleep(3)
            assert all(host.services.begins_nothing for host in laboratory.hosts.values()), (
                "nothing goes past the turns"
            )
            facts = store.facts_count
            under_way = asyncio.ensure_future(agent.add(1))
            await asyncio.sleep(10)
            assert not under_way.done()
            assert store.facts_count == facts, "a call is no fact"
            with pytest.raises(BucketUnreachable):
                await agent.add(1)
            assert (await client.ask("ps", 0))["supervisor"]["replica"]["behind_ms"] > 10_000
            store.away = False
            assert await under_way == 3
            assert await agent.add(1) == 4
            await asyncio.sleep(10)
            assert not any(host.services.begins_nothing for host in laboratory.hosts.values())

        laboratory.play(story)
        laboratory.settle()


def test_a_bucket_that_is_always_too_far_behind_has_answers_wait_for_what_they_speak_of_and_no_longer() -> None:
    with FollowedLaboratory() as laboratory:
        store = laboratory.store

        async def story(client: Client) -> None:
            agent = client.agent(Counter, "a")
            await agent.add(1)
            await asyncio.sleep(2)
            store.slow_s = 3.0  # and others write all the time
            await asyncio.sleep(5)
            for at in range(2, 5):
                began_s = asyncio.get_running_loop().time()
                assert await agent.add(1) == at
                assert asyncio.get_running_loop().time() - began_s < 20
            store.slow_s = 0.0

        laboratory.play(story)
        laboratory.settle()


def test_the_supervisor_that_dies_while_it_waits_leaves_a_life_that_catches_up() -> None:
    with FollowedLaboratory() as laboratory:
        store = laboratory.store

        async def story(client: Client) -> None:
            await client.run(Quick, run_id="first")
            store.away = True
            under_way = asyncio.ensure_future(client.run(Quick, run_id="late"))
            await asyncio.sleep(5)
            laboratory.simulation.kill("supervisor")
            await asyncio.sleep(5)
            store.away = False
            assert (await under_way).ok
            await asyncio.sleep(3)
            assert store.there == store.facts_count

        laboratory.play(story)
        laboratory.settle()


def test_a_bucket_that_takes_nothing_more_ends_nothing_is_told_and_new_work_is_refused_with_the_reason() -> None:
    with FollowedLaboratory() as laboratory:
        store = laboratory.store

        async def story(client: Client) -> None:
            await client.run(Quick, run_id="first")
            await asyncio.sleep(2)
            lives = laboratory.simulation.cluster.restarts
            store.refusal = LedgerError("s3://b/p", "another program follows into it")
            assert (await client.run(Quick, run_id="soon")).ok
            await asyncio.sleep(3)
            under_way = asyncio.ensure_future(client.run(Quick, run_id="late"))
            await asyncio.sleep(30)
            with pytest.raises(BucketUnreachable, match="another program follows into it"):
                await client.run(Quick, run_id="new")
            told = (await client.ask("ps", 0))["supervisor"]["replica"]
            assert "another program follows into it" in told["trouble"]
            assert laboratory.simulation.cluster.restarts == lives
            store.refusal = None
            assert (await under_way).ok
            await asyncio.sleep(3)
            told = (await client.ask("ps", 0))["supervisor"]["replica"]
            assert (told["trouble"], store.there) == ("", store.facts_count)

        laboratory.play(story)
        laboratory.settle()


def test_a_replica_of_which_no_root_can_be_made_is_told_and_keeps_nobody_waiting() -> None:
    with FollowedLaboratory() as laboratory:
        store = laboratory.store

        async def story(client: Client) -> None:
            store.untidy = LedgerDamaged("s3://b/p/storage/1", "it is missing")
            for at in range(3):
                assert (await client.run(Quick, run_id=f"r{at}")).ok
                await asyncio.sleep(5)
            told = (await client.ask("ps", 0))["supervisor"]["replica"]
            assert "storage/1" in told["trouble"]
            store.untidy = None
            assert (await client.run(Quick, run_id="last")).ok
            await asyncio.sleep(5)
            assert (await client.ask("ps", 0))["supervisor"]["replica"]["trouble"] == ""
            assert store.there == store.facts_count

        laboratory.play(story)
        laboratory.settle()


def test_what_changes_while_it_is_looked_at_is_looked_at_again() -> None:
    with FollowedLaboratory() as laboratory:
        store = laboratory.store

        async def story(client: Client) -> None:
            await client.run(Quick, run_id="first")
            await asyncio.sleep(2)
            replication: Any = laboratory.supervisors[-1]._replication  # noqa: SLF001 - as a turn does it meanwhile
            replication.touch(["x@m:T"])
            store.at_prepare = lambda: replication.touch(["x@m:T"])
            await client.run(Quick, run_id="second")
            await asyncio.sleep(2)
            assert any("x@m:T" in each for each in store.cuts)

        laboratory.play(story)
        laboratory.settle()


@pytest.mark.parametrize("where", ["at_prepare", "at_cut"])
def test_a_storage_that_cannot_be_read_now_is_read_later_and_ends_nothing(where: str) -> None:
    with FollowedLaboratory() as laboratory:
        store = laboratory.store

        def busy() -> None:
            raise StorageError("a@m:T", "it changed during each of 200 tries to copy it; try again later")

        async def story(client: Client) -> None:
            await client.run(Quick, run_id="first")
            setattr(store, where, busy)
            assert (await client.run(Quick, run_id="second")).ok
            await asyncio.sleep(1.5)
            told = (await client.ask("ps", 0))["supervisor"]["replica"]
            assert "try again later" in told["trouble"]
            assert store.there < store.facts_count
            setattr(store, where, lambda: None)
            await asyncio.sleep(3)
            assert store.there == store.facts_count
            assert not (await client.ask("ps", 0))["supervisor"]["replica"]["trouble"]
            assert len(laboratory.supervisors) == 1

        laboratory.play(story)
        assert not laboratory.simulation.crashes
        laboratory.settle()
