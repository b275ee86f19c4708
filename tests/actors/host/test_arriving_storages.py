"""Large storages are read by the hosts themselves, by signed URLs, and whatever becomes of the bucket meanwhile an agent begins with its
own storage, or is told that it is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from perdure import Agent, RunContext, StorageLost, exposed
from perdure.actors import Client
from perdure.actors.host import arriving_storages
from perdure.actors.host.arriving_storages import ArrivingStorages, Unread, read_storage
from perdure.actors.link.messages import HoldStorage, MakeCall, Message, Stop, StorageUnread, Wake
from perdure.actors.link.wire import body_of
from perdure.actors.sim_world.weather import Span, Weather
from perdure.actors.tasks import Tasks
from perdure.ledger import FilePatch, LedgerDamaged, Patch, SignedStorage, StorageImage, image_after, in_parts
from perdure.ledger.slots import Answer, Create, Request
from perdure.ledger.storage import signed_storage
from perdure.ledger.storage.carried_disk import CarriedDisk, FetchedStorage
from perdure.ledger.storage.signed_storage import INLINE_MAX, PART_MAX, signed_of
from perdure.ledger.store.bucket import Bucket
from perdure.ledger.store.bucket_storages import BLOCK, Base, PackWriter
from perdure.ledger.store.bucket_storages import signed_storage as signed
from perdure.ledger.store.bucket_store import BucketStore
from perdure.ledger.store.store import FactRow
from perdure.scenarios.testing.bucket_ledger import WatchedStore
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.supervisor.test_carried_storages import kill_hosts
from tests.s3_server import S3, in_process

MB = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with in_process() as s3:
        yield s3


@pytest.fixture
def s3(server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.weather()


@pytest.fixture
def store(s3: S3, tmp_path: Path) -> Iterator[BucketStore]:
    made = BucketStore(tmp_path / "ledger", Bucket(s3.url(tmp_path.name)))
    made.boot()
    made.root_s = 0
    yield made
    made.close()


def large(store: BucketStore, size: int) -> StorageImage:
    """A storage of an agent `a` with a base of two files, and a tail that has changed them."""
    die = random.Random(size)
    image = StorageImage(1, {"": die.randbytes(size), ".wal": die.randbytes(1_000)})
    store.append([FactRow(1, 1, "r", None, "Happened", b"")], [], [Patch("a", 1, 1, image.parts())])
    store.checkpoint(b"m", 1, [], [])
    tail = [FilePatch("", 10, b"changed", size), FilePatch("", size, b"grown", size + 5), FilePatch(".wal", 0, b"", 0)]
    store.append([], [], [Patch("a", 1, 2, tail)])
    after = image_after(image, [Patch("a", 1, 2, tail)])
    assert after is not None
    return after


def contents(found: FetchedStorage) -> StorageImage:
    return StorageImage(found.number, {name: path.read_bytes() for name, path in found.files.items()})


# ---------------------------------------------------------------- what the supervisor says, and what a host reads


def test_of_a_large_storage_nothing_passes_the_supervisor(
    s3: S3, store: BucketStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    image = large(store, 50 * MB)
    before = s3.counts()
    told = store.storage_for_host("a", INLINE_MAX)
    assert isinstance(told, SignedStorage)
    assert s3.counts() == before
    (parts,) = in_parts(told.tail)
    message = HoldStorage("a", told.number, list(map(list, parts)), base=told.plain())
    assert len(body_of(message)) < 64 << 10
    s3.weather(get_ms=15)
    arrived = signed_of(message.base, [FilePatch(*each) for each in message.parts])
    assert contents(read_storage(arrived, tmp_path / "1", Event())) == image
    assert s3.counts()["GET"] - before["GET"] < 60, "blocks that lie together are read together"
    assert "Signature" not in caplog.text


def test_a_small_storage_and_one_that_nobody_else_can_read_is_said_whole(store: BucketStore, tmp_path: Path) -> None:
    image = large(store, 300_000)
    assert store.storage_for_host("a", 400_000) == image
    assert isinstance(store.storage_for_host("a", INLINE_MAX), SignedStorage)
    assert store.storage_for_host("b", INLINE_MAX) is None
    here = BucketStore(tmp_path / "other", Bucket(f"file://{tmp_path}/bucket"))
    here.boot()
    here.root_s = 0
    assert large(here, 300_000) == here.storage_for_host("a", INLINE_MAX)
    here.close()


@pytest.mark.parametrize("size", [0, 5, PART_MAX, 3 * PART_MAX + 7])
def test_what_is_much_is_said_in_several_messages(size: int) -> None:
    parts = [FilePatch("", 3, b"x" * size, size + 3), FilePatch(".wal", 0, b"y" * 10, 10)]
    groups = list(in_parts(parts))
    assert all(sum(len(each.content) for each in group) <= PART_MAX for group in groups)
    patches = [Patch("a", 1, 1, [each for group in groups for each in group])]
    assert image_after(None, patches) == image_after(None, [Patch("a", 1, 1, parts)])
    assert list(in_parts([])) == [[]]


WEATHER: dict[str, dict[str, Any]] = {
    "throttled": {"says": {"SlowDown": 3, "InternalError": 3}},
    "connections are lost": {"lost_before": 3, "lost_after": 3},
    "slow": {"get_ms": 40},
}


@pytest.mark.parametrize("weather", WEATHER)
def test_a_request_without_an_answer_is_sent_again(s3: S3, store: BucketStore, tmp_path: Path, weather: str) -> None:
    image = large(store, 3 * MB)
    told: Any = store.storage_for_host("a", INLINE_MAX)
    s3.weather(**WEATHER[weather])
    assert contents(read_storage(told, tmp_path / "1", Event())) == image


def test_a_server_that_is_away_for_a_while_is_waited_for(s3: S3, store: BucketStore, tmp_path: Path) -> None:
    image = large(store, 3 * MB)
    told: Any = store.storage_for_host("a", INLINE_MAX)
    s3.weather(down="closes")
    found: list[StorageImage] = []
    reading = Thread(target=lambda: found.append(contents(read_storage(told, tmp_path / "1", Event()))))
    reading.start()
    before = s3.counts()["GET"]
    while s3.counts()["GET"] < before + 8:
        ...
    s3.weather()
    reading.join()
    assert found == [image]


UNREAD: dict[str, tuple[dict[str, Any], str, bool]] = {
    "expired": ({"clock_s": 3_700}, "403", True),
    "deleted": ({"says": {"NoSuchKey": True}}, "404", True),
    "away": ({"down": "closes"}, "Error", False),
    "broken": ({"says": {"InternalError": True}}, "500", False),
}


@pytest.mark.parametrize("weather", UNREAD)
def test_what_cannot_be_read_is_told_and_leaves_nothing(
    s3: S3, store: BucketStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weather: str
) -> None:
    monkeypatch.setattr(arriving_storages, "PATIENCE_S", 0.2)
    large(store, 3 * MB)
    told: Any = store.storage_for_host("a", INLINE_MAX)
    changed, why, may_have_moved = UNREAD[weather]
    s3.weather(**changed)
    place = tmp_path / "arriving"
    place.mkdir()
    with pytest.raises(Unread, match=why) as unread:
        read_storage(told, place / "1", Event())
    assert unread.value.may_have_moved is may_have_moved
    assert not list(place.iterdir())


def test_a_block_that_does_not_fit_its_digest_is_not_used(store: BucketStore, tmp_path: Path) -> None:
    large(store, 3 * MB)
    told: Any = store.storage_for_host("a", INLINE_MAX)
    blocks = [each._replace(digest=b"another") if at == 5 else each for at, each in enumerate(told.blocks)]
    with pytest.raises(Unread, match="do not fit their digest") as unread:
        read_storage(told._replace(blocks=blocks), tmp_path / "1", Event())
    assert not unread.value.may_have_moved
    given_up = Event()
    given_up.set()
    with pytest.raises(Unread, match="not needed"):
        read_storage(told, tmp_path / "1", given_up)


def test_files_that_were_read_and_are_not_used_are_deleted(tmp_path: Path) -> None:
    disk = CarriedDisk(tmp_path)
    for _ in range(2):
        file = disk.new_place()
        file.write_bytes(b"x")
        disk.hold("a", FetchedStorage(1, {"": file}))
        assert disk.has("a")
    assert len(list((tmp_path / "arriving").iterdir())) == 1
    disk.let_go("a")
    assert not list((tmp_path / "arriving").iterdir())
    disk.close()


# ---------------------------------------------------------------- agents


class Counter(Agent):
    """Counts, in a log or in a database."""

    @exposed
    def add(self, by: int) -> int:
        self.state["n"] = self.state.get("n", 0) + by
        return int(self.state["n"])

    @exposed
    def rows(self, blob: int = 0) -> int:
        self.sql("CREATE TABLE IF NOT EXISTS t (x BLOB)")
        self.sql("INSERT INTO t VALUES (?)", [b"x" * blob])
        return int(self.sql("SELECT count(*) FROM t")[0][0])


class Worker(Agent):
    """Says how often its first step was begun, in its second attempt."""

    begun: ClassVar[list[int]] = []

    async def run(self, input: None, run: RunContext) -> int:
        async def first() -> int:
            self.begun.append(run.attempt)
            return len(self.begun)

        count = await run.step("first", first)
        if run.attempt == 1:
            await asyncio.sleep(1_000)
        return count


class Shelf:
    """Has the laboratory's storages in a bucket, too, as the roots of a real ledger have, and notes what was asked for."""

    def __init__(self, laboratory: Laboratory, bucket: Bucket) -> None:
        self.store, self.bucket = laboratory.store, bucket
        self.asked: list[float] = []
        self.missing = 0
        """So many of the next times packs are named that are gone."""
        self.lost = ""

    def for_host(self, agent_id: str, inline_max: float) -> Any:
        self.asked.append(inline_max)
        image = self.store.storage(agent_id)
        if image is None:
            return None
        if inline_max != INLINE_MAX:
            if self.lost:
                raise LedgerDamaged("s3://b/p/storage/1", self.lost)
            return image
        packs = PackWriter(self._put, f"storage/{len(self.asked)}")
        blocks = {
            (name, at // BLOCK): packs.add(content[at : at + BLOCK])
            for name, content in image.files.items()
            for at in range(0, len(content), BLOCK)
        }
        packs.end()
        gone, self.missing = self.missing > 0, max(0, self.missing - 1)
        keys = [f"{key}-gone" if gone else key for key in packs.made]
        urls = dict(zip(packs.made, self.bucket.signed(keys), strict=True))
        return signed(Base(image.number, {name: len(body) for name, body in image.files.items()}, blocks), [], urls)

    def _put(self, key: str, body: bytes) -> None:
        self.bucket.run(_put(key, body))


def _put(key: str, body: bytes) -> Generator[Request, Answer, None]:
    yield Create(key, body)


@pytest.fixture
def laboratory(tmp_path: Path) -> Iterator[Laboratory]:
    with Laboratory(1, carried=tmp_path) as made:
        yield made


@pytest.fixture
def shelf(s3: S3, laboratory: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    made = Shelf(laboratory, Bucket(s3.url(f"{tmp_path.name}-shelf")))
    monkeypatch.setattr(WatchedStore, "storage_for_host", lambda _life, *asked: made.for_host(*asked))
    return made


def test_an_agent_wakes_elsewhere_with_what_its_host_has_read(laboratory: Laboratory, shelf: Shelf) -> None:
    async def story(client: Client) -> None:
        a = client.agent(Counter, "a")
        assert [await a.add(2), await a.rows(600_000), await a.rows(600_000)] == [2, 1, 2]
        await kill_hosts(laboratory)
        assert sorted(await asyncio.gather(a.add(1), a.add(1), a.add(1))) == [3, 4, 5]
        assert await a.rows() == 3
        await kill_hosts(laboratory)
        assert await a.rows() == 4

    laboratory.play(story)
    assert set(shelf.asked) == {INLINE_MAX}
    laboratory.settle()


def test_urls_that_have_expired_are_asked_for_again(laboratory: Laboratory, shelf: Shelf) -> None:
    async def story(client: Client) -> None:
        a = client.agent(Counter, "a")
        await a.add(2)
        await kill_hosts(laboratory)
        shelf.asked.clear()
        shelf.missing = 1
        assert sorted(await asyncio.gather(a.add(1), a.add(1))) == [3, 4]

    laboratory.play(story)
    assert shelf.asked == [INLINE_MAX, INLINE_MAX]
    laboratory.settle()


def test_what_a_host_cannot_reach_the_supervisor_carries(
    s3: S3, laboratory: Laboratory, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arriving_storages, "PATIENCE_S", 0.1)
    monkeypatch.setattr(signed_storage, "PART_MAX", 100_000)

    async def story(client: Client) -> None:
        a = client.agent(Counter, "a")
        assert [await a.add(2), await a.rows(600_000)] == [2, 1]
        await kill_hosts(laboratory)
        shelf.asked.clear()
        s3.weather(says={"InternalError": True}, verbs="GET", only="-shelf")
        assert await a.add(1) == 3
        assert await a.rows() == 2

    laboratory.play(story)
    assert shelf.asked == [INLINE_MAX, float("inf")]
    laboratory.settle()


def test_a_storage_that_is_damaged_is_lost_and_harms_its_agent_alone(
    s3: S3, laboratory: Laboratory, shelf: Shelf
) -> None:
    async def story(client: Client) -> None:
        a, b = client.agent(Counter, "a"), client.agent(Counter, "b")
        assert [await a.add(2), await b.add(1)] == [2, 1]
        await kill_hosts(laboratory)
        shelf.lost, shelf.missing = "its bytes do not fit their digest", 2
        with pytest.raises(StorageLost, match="do not fit their digest"):
            await a.add(1)
        assert await b.add(1) == 2
        assert {each.cause for each in laboratory.simulation.crashes} == {"killed"}
        shelf.lost = ""
        await kill_hosts(laboratory)
        assert await a.add(1) == 3

    laboratory.play(story)
    laboratory.settle()


def test_a_run_goes_on_elsewhere_with_what_its_host_has_read(laboratory: Laboratory, shelf: Shelf) -> None:
    Worker.begun.clear()

    async def story(client: Client) -> None:
        work = asyncio.ensure_future(client.run(Worker, run_id="one"))
        await asyncio.sleep(5)
        await kill_hosts(laboratory)
        assert (await work).output == 1

    laboratory.play(story)
    assert Worker.begun == [1]
    assert set(shelf.asked) == {INLINE_MAX}
    laboratory.settle()


def test_a_run_is_cancelled_while_its_storage_is_read(laboratory: Laboratory, shelf: Shelf) -> None:
    async def story(client: Client) -> None:
        work = asyncio.ensure_future(client.run(Worker, run_id="one"))
        await asyncio.sleep(5)
        laboratory.simulation.change_weather(Weather(thread_ms=Span(20_000, 20_000)))
        for host_id in list(laboratory.hosts):
            laboratory.simulation.kill(host_id)
        await asyncio.sleep(10)
        await client.ask("cancel", "one", None, "no longer needed")
        assert (await work).status == "aborted"
        laboratory.simulation.heal()

    laboratory.play(story)
    laboratory.settle()


async def held_by(said: list[Message], answers: list[StorageUnread], script: Callable[[Any], Any]) -> None:
    """Play a script with the arriving storages of a host, which notes what it does and what it asks for."""
    tasks, read = Tasks("a host"), asyncio.Event()

    async def run(job: Callable[[], Any]) -> Any:
        await read.wait()
        return FetchedStorage(1, {})

    carried = SimpleNamespace(new_place=lambda: Path("nowhere"), hold=lambda *given: said.append(given))
    threads = SimpleNamespace(run=run)
    services: Any = SimpleNamespace(
        carried=carried, world=SimpleNamespace(threads=threads), peer=SimpleNamespace(push=answers.append)
    )
    arriving = ArrivingStorages(services, tasks, lambda each: arriving.defers(each) or said.append(each))
    named = HoldStorage("a", 1, [], base=SignedStorage(1, {}, [], [], []).plain())
    for each in script(named):
        if each is read:
            read.set()
        elif isinstance(each, HoldStorage):
            arriving.hold(each)
        elif not arriving.defers(each):
            said.append(each)
        await asyncio.sleep(0)
    read.set()
    for _ in range(5):
        await asyncio.sleep(0)


def test_what_is_said_to_an_agent_waits_for_its_storage_in_order() -> None:
    said: list[Any] = []
    wake, call, other = Wake("a", 3), MakeCall("a", 3, "ref", "m", b"", False, False), Wake("b", 4)
    asyncio.run(held_by(said, [], lambda named: [named, wake, other, Stop("a", 2), call]))
    assert said == [other, Stop("a", 2), ("a", FetchedStorage(1, {}), ""), wake, call], "2 was the life before"


def test_what_was_said_in_part_is_said_anew_in_the_next_session() -> None:
    carried: list[Any] = []
    services: Any = SimpleNamespace(carried=SimpleNamespace(hold=lambda *given: carried.append(given)))
    arriving = ArrivingStorages(services, Tasks("a host"), lambda _: None)
    arriving.hold(HoldStorage("a", 2, [["", 5, b"old", 8]], more=True))
    arriving.begin_session()
    arriving.hold(HoldStorage("a", 2, [["", 0, b"x", 1]], more=True))
    arriving.hold(HoldStorage("a", 2, [["", 1, b"y", 2]]))
    assert carried == [("a", StorageImage(2, {"": b"xy"}), "")]


def test_one_that_is_to_stop_stops_before_its_storage_is_there() -> None:
    said: list[Any] = []
    wake, call, stop = Wake("a", 3), MakeCall("a", 3, "ref", "m", b"", False, False), Stop("a", 3)
    asyncio.run(held_by(said, [], lambda named: [named, wake, call, stop]))
    assert said == [stop, wake, call], "and the host begins no life that has been stopped"


def test_a_storage_that_is_told_again_is_the_one_that_counts() -> None:
    said: list[Any] = []
    inline = HoldStorage("a", 2, [["", 0, b"x", 1]])
    asyncio.run(held_by(said, [], lambda named: [named, Wake("a", 3), named, inline]))
    assert said == [("a", StorageImage(2, {"": b"x"}), ""), Wake("a", 3)]
