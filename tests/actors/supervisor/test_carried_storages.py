"""Storages that the supervisor carries: nothing leaves a host before it is durable, and hosts die with their disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure import (
    Agent,
    BadRequest,
    BucketUnreachable,
    ConflictingRequest,
    OutcomeUnknown,
    RunContext,
    StorageLost,
    exposed,
)
from perdure.actors import Client, KillPoint
from perdure.actors.life.life import Life
from perdure.actors.link.messages import Ask, CopyStorage, Happened, HostHello, Message, Observe, Reply, RunEnded, Wait
from perdure.actors.link.peer import Peer
from perdure.actors.link.wire import messages_in
from perdure.actors.sim_world.weather import Span, Weather
from perdure.actors.supervisor.storage_carrier import StorageCarrier
from perdure.actors.tasks import Tasks
from perdure.ledger import (
    ATTEND_S,
    Activation,
    AgentBeingDeleted,
    Forget,
    LedgerDamaged,
    LedgerError,
    Request,
    StaleIncarnation,
    StorageError,
    SupervisorStarted,
    TooLarge,
    View,
    open_bucket,
    record_fact,
)
from perdure.ledger.storage.agent_storages import AgentStorages
from perdure.ledger.storage.carried_disk import CarriedDisk
from perdure.ledger.storage.patches import FilePatch, Patch, StorageImage, first_of_copy, image_after, patch_of, whole
from perdure.ledger.store.bucket_store import BucketStore
from perdure.ledger.store.memory_store import MemoryStore
from perdure.scenarios.testing.laboratory import QUICK, Laboratory
from tests.actors.traces import Recorder
from tests.kit import address

SLOW = Weather(commit_slow=1, commit_slow_ms=Span(20_000, 20_000))


class Counter(Agent):
    """Counts, and says how often it has answered."""

    @exposed
    def add(self, by: int) -> int:
        self.state["n"] = self.state.get("n", 0) + by
        return int(self.state["n"])

    @exposed
    async def add_durably(self, by: int) -> float:
        self.add(by)
        begun_s = asyncio.get_running_loop().time()
        await self.storage.durable()
        return asyncio.get_running_loop().time() - begun_s

    @exposed
    def rows(self) -> int:
        self.sql("CREATE TABLE IF NOT EXISTS t (x INTEGER)")
        self.sql("INSERT INTO t VALUES (1)")
        return int(self.sql("SELECT count(*) FROM t")[0][0])

    @exposed
    def kept(self) -> list[int]:
        tables = self.sql("SELECT count(*) FROM duckdb_tables() WHERE table_name = 't'")[0][0]
        return [self.state.get("n", 0), self.sql("SELECT count(*) FROM t")[0][0] if tables else 0]

    @exposed
    async def fork(self, name: str) -> None:
        await self.storage.fork(name)

    @exposed
    async def fork_inside(self, name: str) -> None:
        with self.transaction():
            self.add(100)
            await self.storage.fork(name)

    @exposed
    def snapshot(self, path: str) -> None:
        self.storage.snapshot(path)

    @exposed
    def restore(self, path: str) -> list[int]:
        self.storage.restore(path)
        return self.kept()


class Worker(Agent):
    """Begins work that ends at once."""

    @exposed
    async def begin(self, kind: str) -> None:
        if kind == "queue":
            self.queue("done")
        elif kind == "unmanaged fiber":
            self.state["begun"] = True
            await self.run_fiber("unmanaged", lambda _fiber: None)
        else:
            self.start_fiber("work", "done")

    def done(self, given: object = None, it: object = None) -> None: ...


class Stepper(Agent):
    """Says how long its step took."""

    async def run(self, input: None, run: RunContext) -> float:
        async def nothing() -> int:
            return 1

        begun_s = asyncio.get_running_loop().time()
        if self.name.startswith("sync"):
            await run.step("one", lambda: 1)
        else:
            await run.step("one", nothing)
        return asyncio.get_running_loop().time() - begun_s


@pytest.fixture
def laboratory(tmp_path: Path) -> Iterator[Laboratory]:
    with Laboratory(1, carried=tmp_path) as made:
        yield made


async def kill_hosts(laboratory: Laboratory) -> None:
    for host_id in list(laboratory.hosts):
        laboratory.simulation.kill(host_id)
    await asyncio.sleep(30)  # a call that was handed to one of them would be unknown


def test_what_was_answered_is_there_on_another_host_without_any_file_of_the_first(laboratory: Laboratory) -> None:
    async def story(client: Client) -> None:
        agent = client.agent(Counter, "a")
        assert [await agent.add(2), await agent.add(3), await agent.rows(), await agent.rows()] == [2, 5, 1, 2]
        await kill_hosts(laboratory)
        assert await agent.add(1) == 6
        await kill_hosts(laboratory)
        assert await agent.rows() == 3

    laboratory.play(story)
    laboratory.settle()


def test_an_answer_waits_until_what_it_speaks_of_is_durable(laboratory: Laboratory) -> None:
    async def story(client: Client) -> None:
        agent = client.agent(Counter, "a")
        await agent.add(1)
        laboratory.simulation.change_weather(SLOW)
        begun_s = asyncio.get_running_loop().time()
        assert await agent.add(1) == 2
        assert asyncio.get_running_loop().time() - begun_s > 15
        laboratory.simulation.heal()

    laboratory.play(story)


@pytest.mark.parametrize("waits", ["step", "sync step", "durable"])
def test_a_step_and_durable_wait_for_it_too(laboratory: Laboratory, waits: str) -> None:
    async def story(client: Client) -> float:
        await client.agent(Counter, "a").add(1)
        if waits == "durable":
            laboratory.simulation.change_weather(SLOW)
            took_s = await client.agent(Counter, "a").add_durably(1)
        else:
            run = asyncio.ensure_future(client.run(Stepper, run_id=waits.replace(" ", "-")))
            await asyncio.sleep(0)
            laboratory.simulation.change_weather(SLOW)
            took_s = (await run).output
        laboratory.simulation.heal()
        return float(took_s)

    assert laboratory.play(story) > 15


@pytest.mark.parametrize(("carried", "open_transaction"), [(True, False), (True, True), (False, False)])
def test_sync_code_waits_in_its_step_but_for_one_in_a_transaction(*, carried: bool, open_transaction: bool) -> None:
    begun: list[object] = []

    def begin(job: object) -> Future[None]:
        begun.append(job)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    services = SimpleNamespace(is_carried=carried, until_durable=lambda: "until durable")
    life = SimpleNamespace(services=services, transaction=object() if open_transaction else None, _begun=begin)
    Life.wait_durable(life)  # type: ignore[arg-type]
    assert begun == (["until durable"] if carried and not open_transaction else [])

    async def on_a_loop() -> None:
        begun.clear()
        Life.wait_durable(life)  # type: ignore[arg-type]
        assert not begun

    asyncio.run(on_a_loop())


@pytest.mark.parametrize("kind", ["fiber", "queue", "unmanaged fiber"])
@pytest.mark.parametrize("dies", [False, True])
def test_a_span_is_told_when_what_it_speaks_of_is_durable(tmp_path: Path, kind: str, *, dies: bool) -> None:
    recorder = Recorder()
    with Laboratory(1, carried=tmp_path, telemetry=recorder) as laboratory:

        async def story(client: Client) -> None:
            agent = client.agent(Worker, "w")
            await agent.begin("queue")  # it is awake from now on
            await asyncio.sleep(1)
            before = len(recorder.spans)
            laboratory.simulation.change_weather(SLOW)
            begun = asyncio.ensure_future(agent.begin(kind))
            await asyncio.sleep(15)
            assert len(recorder.spans) == before, "the bucket has nothing of it yet"
            if dies:
                await kill_hosts(laboratory)
            laboratory.simulation.heal()
            await asyncio.gather(begun, return_exceptions=dies)
            await asyncio.sleep(60)
            assert {each.error for each in recorder.spans} <= {""}, "what was lost has not been told"
            assert dies or len(recorder.spans) == before + 1

        laboratory.play(story)
        laboratory.settle()


def test_a_deleted_storage_is_no_agent_any_more_although_its_name_is_remembered(tmp_path: Path) -> None:
    store = open_bucket(tmp_path / "ledger", f"file://{tmp_path}/bucket")
    store.boot()
    store.root_s = 0
    carrier, parts = StorageCarrier(View(), store), [whole("", b"x")]
    fact = record_fact(View(), SupervisorStarted(1, {}), 1_000)
    store.append([fact], [], [Patch("a", 1, 1, parts), Patch("b", 1, 1, parts)])
    store.checkpoint(b"m", 1, [], [])
    carrier.delete("a")
    store.append([], [], carrier.due())
    store.checkpoint(b"m", 1, [], [])
    assert (carrier.exists("a"), carrier.exists("b"), carrier.exists("c")) == (False, True, False)
    assert carrier.may_exist("b")
    store.close()


def test_a_bucket_that_does_not_answer_refuses_new_work_and_answers_questions(laboratory: Laboratory) -> None:
    async def story(client: Client) -> None:
        agent = client.agent(Counter, "a")
        await agent.add(1)
        laboratory.simulation.change_weather(Weather(bucket_lost=1))
        under_way = asyncio.ensure_future(agent.add(1))
        await asyncio.sleep(8)
        with pytest.raises(BucketUnreachable, match=r"has not answered for \d+ s"):
            await client.run(Stepper, run_id="new")
        with pytest.raises(BucketUnreachable):
            await client.agent(Counter, "b").add(1)
        assert any("has not answered for" in each for each in (await client.ask("audit"))["findings"])
        assert not under_way.done()
        laboratory.simulation.heal()
        assert await under_way == 2, "what was accepted goes on by itself"
        assert not (await client.ask("audit"))["findings"]
        assert (await client.run(Stepper, run_id="new")).ok

    laboratory.play(story)
    laboratory.settle()


class Echo(Agent):
    """Returns what it is given."""

    async def run(self, input: str) -> str:
        return input


@pytest.mark.parametrize("kept", [20_000, 0])
def test_what_has_ended_durably_is_told_again_while_the_bucket_does_not_answer(tmp_path: Path, kept: int) -> None:
    async def story(client: Client) -> None:
        for name, said in (("small", "a"), ("large", "b" * 5_000)):
            assert (await client.run(Echo, said, run_id=name)).output == said
        await asyncio.sleep(20)  # memory may let go of them
        assert ("small" in laboratory.supervisors[-1].view.runs) == bool(kept)
        laboratory.simulation.change_weather(Weather(bucket_lost=1))
        under_way = asyncio.ensure_future(client.agent(Counter, "a").add(1))
        last = asyncio.ensure_future(client.run(Echo, "c", run_id="last"))
        await asyncio.sleep(8)
        async with asyncio.timeout(30):
            for name, said in (("small", "a"), ("large", "b" * 5_000)):
                assert (await client.run(Echo, said, run_id=name)).output == said
                assert (await (await client.start(Echo, said, run_id=name)).result()).output == said
            with pytest.raises(ConflictingRequest, match="exists with another input"):
                await client.run(Echo, "another", run_id="small")
        again = asyncio.ensure_future(client.run(Echo, "c", run_id="last"))
        await asyncio.sleep(20)
        assert [each.done() for each in (again, last, under_way)] == [False] * 3, "nothing of it is durable"
        laboratory.simulation.heal()
        assert [(await each).output for each in (last, again)] == ["c", "c"]
        assert await under_way == 1

    limits = replace(QUICK, retained_in_memory=kept, checkpoint_idle_ms=1_000)
    with Laboratory(1, limits=limits, carried=tmp_path) as laboratory:
        laboratory.play(story)
        laboratory.settle()


class Nap(Agent):
    """Ends after ten seconds."""

    async def run(self, input: None) -> str:
        await asyncio.sleep(10)
        return "rested"


def test_an_end_that_is_not_durable_yet_is_told_to_nobody_and_the_log_says_what_is_waited_for(
    laboratory: Laboratory, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(client: Client) -> None:
        await client.start(Nap, run_id="nap")
        await asyncio.sleep(5)
        laboratory.simulation.change_weather(Weather(bucket_lost=1))
        await asyncio.sleep(15)
        assert laboratory.supervisors[-1].view.runs["nap"].status == "completed"
        again = asyncio.ensure_future(client.run(Nap, run_id="nap"))
        await asyncio.sleep(20)
        assert not again.done()
        laboratory.simulation.heal()
        assert (await again).output == "rested"

    laboratory.play(story)
    told = [each.getMessage() for each in caplog.records if each.name == "perdure.supervisor"]
    assert sum("waits until it answers" in each for each in told) == 1
    laboratory.settle()


def test_a_program_that_comes_while_the_bucket_does_not_answer_is_answered_like_those_that_were_there(
    laboratory: Laboratory,
) -> None:
    async def story(client: Client) -> None:
        assert (await client.run(Stepper, run_id="before")).ok
        laboratory.simulation.change_weather(Weather(bucket_lost=1))
        under_way = asyncio.ensure_future(client.run(Stepper, run_id="waits"))
        await asyncio.sleep(1)
        late = Client(client.world, client.peer.transport, client.limits)
        serving = asyncio.ensure_future(late.serve())
        async with asyncio.timeout(10):
            assert any("has not answered for" in each for each in (await late.ask("audit"))["findings"])
        for wish in (late.run(Stepper), late.start(Stepper), late.agent(Counter, "b").add(1)):
            with pytest.raises(BucketUnreachable):
                async with asyncio.timeout(5):
                    await wish
        followed = asyncio.ensure_future(late.peer.durable(Wait(["waits"])))
        await asyncio.sleep(10)
        assert not followed.done()
        assert not under_way.done()
        laboratory.simulation.heal()
        assert (await under_way).ok
        async with asyncio.timeout(2):
            await followed
        assert (await late.run(Stepper, run_id="after")).ok
        serving.cancel()

    laboratory.play(story)
    laboratory.settle()


def test_a_host_that_comes_while_the_bucket_does_not_answer_is_refused_nothing(laboratory: Laboratory) -> None:
    async def story(client: Client) -> None:
        assert await client.agent(Counter, "a").add(1) == 1
        laboratory.simulation.change_weather(Weather(bucket_lost=1))
        under_way = asyncio.ensure_future(client.agent(Counter, "a").add(1))
        await asyncio.sleep(8)
        sessions = laboratory.supervisors[-1].sessions
        heard: list[Any] = []
        peer = Peer(
            client.world, Tasks("a host"), client.peer.transport, "a-host", client.limits,
            lambda _: HostHello(1, "n", 1, [], [], []), heard.append,
        )  # fmt: skip
        serving = asyncio.ensure_future(peer.serve())
        await asyncio.sleep(8)
        assert sessions.by_peer["a-host"].is_host
        peer.push(Request("theirs", "m:T", "", "", "d", b"", {}, 1, wait=True))
        await asyncio.sleep(8)
        assert not heard
        serving.cancel()
        laboratory.simulation.heal()
        assert await under_way == 2

    laboratory.play(story)


def test_a_supervisor_attends_to_its_door_although_nothing_happens_and_ends_when_another_has_begun(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[BucketStore] = []

    def attend(store: BucketStore) -> None:
        looks.append(store)
        if len(looks) == 3:
            raise LedgerError("s3://b/p", "another supervisor has begun")

    async def story(client: Client) -> None:
        await client.agent(Counter, "a").add(1)
        (first,) = laboratory.supervisors
        monkeypatch.setattr(BucketStore, "attend", attend)
        await asyncio.sleep(5 * ATTEND_S)
        assert len(looks) > 3
        assert first not in laboratory.supervisors
        assert await client.agent(Counter, "a").add(1) == 2

    laboratory.play(story)


def test_a_storage_that_cannot_be_read_harms_its_agent_alone(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(client: Client) -> None:
        for name in "ab":
            await client.agent(Counter, name).add(1)
        await kill_hosts(laboratory)
        store: Any = laboratory.supervisors[-1].store
        storage_for_host = store.storage_for_host

        def read(agent: str, inline_max: float) -> Any:
            if agent.startswith("a@"):
                raise LedgerDamaged("s3://b/p/storage/1", "its bytes do not fit their digest")
            return storage_for_host(agent, inline_max)

        monkeypatch.setattr(store, "storage_for_host", read)
        with pytest.raises(StorageLost, match="do not fit their digest"):
            await client.agent(Counter, "a").add(1)
        assert await client.agent(Counter, "b").add(1) == 2
        assert {each.cause for each in laboratory.simulation.crashes} == {"killed"}
        monkeypatch.undo()
        await kill_hosts(laboratory)
        assert await client.agent(Counter, "a").add(1) == 2

    laboratory.play(story)
    laboratory.settle()


def test_commits_without_facts_are_followed_by_a_checkpoint_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Laboratory(1, limits=replace(QUICK, idle_ms=10_000_000), carried=tmp_path) as laboratory:
        store, taken = laboratory.store, list[int]()
        checkpoint = store.checkpoint
        monkeypatch.setattr(store, "checkpoint", lambda *given: (taken.append(given[1]), checkpoint(*given)))

        async def story(client: Client) -> None:
            await client.agent(Counter, "a").add(1)
            await asyncio.sleep(60)
            before, facts = len(taken), store.facts_count
            await client.agent(Counter, "a").add(1)
            await asyncio.sleep(60)
            assert store.facts_count == facts, "the agent was awake, so a call is no fact"
            assert len(taken) > before

        laboratory.play(story)


def test_patches_of_an_earlier_life_and_patches_that_are_said_again_do_not_count() -> None:
    view, store = View(), MemoryStore(carries_storages=True)
    carrier = StorageCarrier(view, store)
    view.agents["a"] = Activation("a", incarnation=2, host_id="h")

    def due_after(host: str, incarnation: int, *numbers: int) -> list[int]:
        carrier.take(host, [Patch("a", incarnation, number, [whole("", b"x")]).packed() for number in numbers])
        due = list(carrier.due())
        store.append([], [], due)
        return [each.number for each in due]

    assert due_after("h", 1, 1) == [], "of an earlier life"
    assert due_after("other", 2, 1) == [], "of another host"
    assert due_after("h", 2, 1, 2) == [1, 2]
    assert due_after("h", 2, 1, 2, 3) == [3], "a host says again what was not acknowledged"
    view.agents["a"].host_id = ""
    carrier.ended(["a"])
    assert due_after("h", 2, 4) == [4], "it was the last life, and there is no later one"
    with pytest.raises(AssertionError, match="patch 9 of a came after patch 4"):
        due_after("h", 2, 9)


def test_what_a_host_answers_itself_waits_until_it_is_durable(laboratory: Laboratory) -> None:
    async def story(client: Client) -> None:
        await client.agent(Counter, "a").add(1)
        (tenant,) = [tenant for host in laboratory.hosts.values() for tenant in host.tenants.values()]
        laboratory.simulation.change_weather(SLOW)
        tenant.agent.state["n"] = 7
        begun_s = asyncio.get_running_loop().time()
        await tenant.look("a question that is passed on to the supervisor", b"")
        assert asyncio.get_running_loop().time() - begun_s > 15
        laboratory.simulation.heal()

    laboratory.play(story)


@pytest.mark.parametrize("wish", ["forget", "wait", "observe"])
def test_what_the_supervisor_says_while_it_decides_waits_until_that_is_durable(
    laboratory: Laboratory, monkeypatch: pytest.MonkeyPatch, wish: str
) -> None:
    early: list[object] = []

    async def story(client: Client) -> None:
        await client.agent(Counter, "a").add(1)
        (supervisor,) = laboratory.supervisors
        append = supervisor._append  # noqa: SLF001 - where the commit begins

        async def appends(*given: Any) -> float:
            links = [session.link for session in supervisor.sessions.by_peer.values()]
            early.extend(messages_in([body for link in links for body in link.pending[-link.unsent :] if link.unsent]))
            return await append(*given)

        monkeypatch.setattr(supervisor, "_append", appends)
        laboratory.simulation.change_weather(SLOW)
        waiting = asyncio.ensure_future(client.agent(Counter, "b").add(1))
        await asyncio.sleep(0)
        wishes: dict[str, Message] = {
            "forget": Ask("q", Forget(address(Counter, "b"))),
            "wait": Wait(["unknown"]),
            "observe": Observe(wanted=True),
        }
        client.peer.push(wishes[wish])  # in the turn in which the agent begins to wake
        await asyncio.wait([waiting])
        laboratory.simulation.heal()

    laboratory.play(story)
    assert not [each for each in early if isinstance(each, Reply | RunEnded | Happened)]


def test_what_a_life_leaves_in_the_cache_is_not_there_for_the_next_one(tmp_path: Path) -> None:
    disk = CarriedDisk(tmp_path)
    first = AgentStorages(disk)
    first.open("a", 1).save_result("r", b"one")
    first.close()
    assert not list(tmp_path.rglob("*.db*"))
    disk.hold("a", None)
    assert not AgentStorages(disk).open("a", 2).exists
    disk.close()


# ---------------------------------------------------------------- copies


@pytest.mark.parametrize("is_database", [False, True])
def test_a_copy_for_another_agent_is_there_without_any_file_of_its_host(
    laboratory: Laboratory, *, is_database: bool
) -> None:
    async def story(client: Client) -> None:
        agent, copy = client.agent(Counter, "a"), client.agent(Counter, "b")
        await agent.add(2)
        rows = await agent.rows() if is_database else 0
        await agent.fork("b")
        await agent.add(3)
        await kill_hosts(laboratory)
        assert await copy.kept() == [2, rows]
        assert [await copy.add(10), await copy.rows()] == [12, rows + 1]
        await kill_hosts(laboratory)
        assert [await copy.kept(), await agent.kept()] == [[12, rows + 1], [5, rows]]
        await copy.fork("c")
        assert await client.agent(Counter, "c").kept() == [12, rows + 1]

    laboratory.play(story)
    laboratory.settle()


def test_a_copy_is_refused_for_an_agent_that_has_a_storage_or_is_awake_or_is_being_deleted(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    async def story(client: Client) -> None:
        agent = client.agent(Counter, "a")
        with pytest.raises(BadRequest, match="never wrote"):
            await agent.fork("b")
        await agent.add(1)
        await client.agent(Counter, "asleep").add(7)
        await asyncio.sleep(10)
        assert await client.agent(Counter, "awake").kept() == [0, 0], "it has no storage"
        for target in ("asleep", "awake", "a"):
            with pytest.raises(BadRequest, match=f"{target}@.*has a storage already, or is awake"):
                await agent.fork(target)
        await agent.fork("b")
        with pytest.raises(BadRequest, match=r"b@.*has a storage already"):
            await agent.fork("b")
        await client.ask("forget", address(Counter, "asleep"))
        with pytest.raises(AgentBeingDeleted):
            await agent.fork("asleep")
        await asyncio.sleep(30)
        await agent.add(1)
        await agent.fork("asleep")
        assert [await client.agent(Counter, name).kept() for name in ("asleep", "awake", "b")] == [
            [2, 0],
            [0, 0],
            [1, 0],
        ]

    laboratory.play(story)
    laboratory.settle()
    assert not list(tmp_path.rglob("arriving/*"))


def test_a_copy_has_what_is_committed_and_not_the_open_transaction(laboratory: Laboratory) -> None:
    async def story(client: Client) -> None:
        agent = client.agent(Counter, "a")
        await agent.add(1)
        await agent.fork_inside("b")
        assert [await client.agent(Counter, name).kept() for name in "ab"] == [[101, 0], [1, 0]]

    laboratory.play(story)


def test_a_copy_is_acknowledged_when_it_is_durable(laboratory: Laboratory) -> None:
    async def story(client: Client) -> None:
        agent = client.agent(Counter, "a")
        await agent.add(1)
        laboratory.simulation.change_weather(SLOW)
        begun_s = asyncio.get_running_loop().time()
        await agent.fork("b")
        assert asyncio.get_running_loop().time() - begun_s > 15
        laboratory.simulation.heal()

    laboratory.play(story)


@pytest.mark.thorough
@pytest.mark.parametrize("victims", [("host",), ("supervisor",), ("supervisor", "host")], ids=" and ".join)
def test_whatever_dies_while_a_copy_is_made_it_is_there_wholly_or_not_at_all(
    tmp_path: Path, victims: tuple[str, ...]
) -> None:
    assert next(visit for visit in count() if not _dies_at(visit, tmp_path, victims)) >= 6


def _dies_at(visit: int, tmp_path: Path, victims: tuple[str, ...]) -> bool:
    """Play a copy in which the victims die when any process has come to this many kill points. Returns whether one did."""
    visitors: list[str] = []
    armed: list[bool] = []

    def strikes(process: str, _point: KillPoint, _detail: str) -> bool:
        if not armed:
            return False
        visitors.append(process)
        if len(visitors) - 1 != visit:
            return False
        dying = [
            each for each in ("supervisor", *laboratory.hosts) if (each if each == "supervisor" else "host") in victims
        ]
        for each in dying:
            if each != process:
                laboratory.simulation.kill(each)
        return process in dying

    async def story(client: Client) -> None:
        agent, copy = client.agent(Counter, "a"), client.agent(Counter, "b")
        await agent.add(2)
        armed.append(True)
        try:
            await agent.fork("b")
        except OutcomeUnknown:
            is_said = False
        else:
            is_said = True
        armed.clear()
        await kill_hosts(laboratory)
        kept = await copy.kept()
        assert kept == [2, 0] or (kept == [0, 0] and not is_said)
        await kill_hosts(laboratory)
        if kept == [0, 0]:
            await agent.fork("b")
        else:
            with pytest.raises(BadRequest, match="has a storage already"):
                await agent.fork("b")
        assert [await agent.kept(), await copy.add(1), await copy.kept()] == [[2, 0], 3, [3, 0]]

    with Laboratory(1, carried=tmp_path / str(visit), kill_when=strikes) as laboratory:
        laboratory.play(story)
        laboratory.settle()
        return len(visitors) > visit


def test_a_copy_that_is_asked_for_again_is_the_one_that_was_made_and_earlier_lives_do_not_write_into_it() -> None:
    view, store = View(), MemoryStore(carries_storages=True)
    carrier, first = StorageCarrier(view, store), first_of_copy(0.5)
    view.agents["a"] = Activation("a", incarnation=2, host_id="h")
    view.agents["b"] = Activation("b", incarnation=1)  # of which a host that was given up may still speak

    def copy(host: str = "h", incarnation: int = 2, number: int = first) -> list[int]:
        carrier.copy(host, CopyStorage("a", incarnation, "b", number, b"x"))
        due = list(carrier.due())
        store.append([], [], due)
        return [each.number for each in due]

    for host, incarnation in (("h", 1), ("other", 2)):
        with pytest.raises(StaleIncarnation):
            copy(host, incarnation)
    assert copy() == [first]
    carrier.take("lost", [Patch("b", 1, number, [whole("", b"old")]).packed() for number in (1, 2)])
    assert not carrier.due()
    again = StorageCarrier(view, store)
    again.take("h", [Patch("b", 1, first + 1, [whole("", b"y")]).packed()])
    store.append([], [], again.due())
    view.agents["b"].host_id = "h"  # it has woken since
    carrier = again
    assert copy() == []
    with pytest.raises(BadRequest, match="has a storage already"):
        copy(number=first_of_copy(0.25))
    assert store.storage("b") == StorageImage(first + 1, {"": b"y"})


def test_a_life_that_would_open_its_storage_anew_keeps_it_open_and_ends_if_it_is_broken(
    laboratory: Laboratory,
) -> None:
    def life() -> Any:
        (found,) = [each for host in laboratory.hosts.values() for each in host.tenants.values()]
        return found

    async def story(client: Client) -> None:
        agent = client.agent(Counter, "a")
        assert await agent.add(1) == 1
        life().reopen()  # as a conversation does whose turn has failed
        assert await agent.add(1) == 2
        first = life()
        first.storage.file.broken(OSError("the disk is full"))
        with pytest.raises(StorageError, match="the disk is full"):
            first.reopen()
        await asyncio.sleep(10)
        assert await agent.add(1) == 3
        assert life() is not first
        life().storage.close()
        with pytest.raises(StaleIncarnation):
            life().reopen()
        with pytest.raises(StorageError, match="only the next one"):
            life().services.agent_storages.open(life().agent_id, life().incarnation)
        await client.ask("forget", address(Counter, "a"))
        await asyncio.sleep(30)
        assert await agent.add(1) == 1, "there is no storage, so none is named to the host of the next life"

    laboratory.play(story)
    laboratory.settle()


def test_a_storage_that_is_restored_is_there_without_any_file_of_its_host(
    laboratory: Laboratory, tmp_path: Path
) -> None:
    path = str(tmp_path / "snapshot.db")

    async def story(client: Client) -> None:
        agent, other = client.agent(Counter, "a"), client.agent(Counter, "b")
        assert [await agent.add(2), await agent.rows()] == [2, 1]
        await agent.snapshot(path)
        await agent.add(3)
        assert await other.restore(path) == [2, 1]
        await kill_hosts(laboratory)
        assert [await agent.kept(), await other.kept()] == [[5, 1], [2, 1]]
        await client.ask("forget", address(Counter, "a"))
        await asyncio.sleep(30)
        assert await agent.restore(path) == [2, 1]
        assert await agent.add(1) == 3
        await kill_hosts(laboratory)
        assert await agent.kept() == [3, 1]
        with pytest.raises(BadRequest, match="has a storage already"):
            await agent.restore(path)

    laboratory.play(story)
    laboratory.settle()


def test_what_would_be_carried_in_one_patch_that_is_too_large_is_refused_and_leaves_nothing(
    laboratory: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(client: Client) -> None:
        agent = client.agent(Counter, "a")
        await agent.add(1)
        await agent.snapshot(str(tmp_path / "snapshot.db"))
        monkeypatch.setattr("perdure.ledger.storage.carried_disk.COPY_MAX", 9_999)
        with pytest.raises(TooLarge, match=r"has \d+ bytes, and one .* has 9999 at most"):
            await agent.fork("b")
        with pytest.raises(TooLarge):
            await client.agent(Counter, "c").restore(str(tmp_path / "snapshot.db"))
        assert [await client.agent(Counter, name).add(1) for name in "abc"] == [2, 1, 1]

    laboratory.play(story)
    laboratory.settle()
    assert not list(tmp_path.rglob("arriving/*"))


# ---------------------------------------------------------------- patches


PARTS: dict[str, tuple[Callable[[], FilePatch], bytes]] = {
    "appended": (lambda: FilePatch("", 3, b"de", 5), b"abcde"),
    "over the end": (lambda: FilePatch("", 2, b"XY", 4), b"abXY"),
    "shorter": (lambda: FilePatch("", 0, b"x", 1), b"x"),
    "behind a gap": (lambda: FilePatch("", 5, b"f", 6), b"abc\0\0f"),
    "replaced": (lambda: whole("", b"new"), b"new"),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_patch_changes_a_file(name: str) -> None:
    part, expected = PARTS[name]
    first = image_after(None, [Patch("a", 1, 1, [whole("", b"abc")])])
    patch = Patch("a", 1, 2, [part()])
    after: Any = image_after(first, [patch_of(patch.packed())])
    assert (after.number, after.files) == (2, {"": expected})


def test_a_deleted_storage_is_none_and_the_next_one_begins_anew() -> None:
    patches = [Patch("a", 1, 1, [whole("", b"abc"), whole(".wal", b"w")]), Patch("a", 0, 0)]
    assert image_after(None, patches) is None
    after: Any = image_after(None, [*patches, Patch("a", 2, 1, [whole("", b"z")])])
    assert (after.number, after.files) == (1, {"": b"z"})
