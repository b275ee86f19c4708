"""The world of Ray, with toys in the places of supervisor and host: what the ports promise, under real deaths."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from perdure.actors.ports import PoolSpec
from perdure.actors.ray_world.cluster_record import AUTH, read_record
from perdure.actors.ray_world.deployment import Implementations
from perdure.actors.ray_world.lifetime import on_own_thread
from perdure.actors.ray_world.os_processes import (
    ProcessId,
    ProcessInfo,
    children,
    descendants,
    is_alive,
    kill,
    this_process,
    wait_until_gone,
)
from perdure.actors.ray_world.ray_internals import GCS, IDLE_WORKER, RAYLET, SESSION, workers_of
from perdure.actors.ray_world.ray_transport import RayTransport
from perdure.actors.ray_world.supervisors import RayMetrics
from perdure.actors.ray_world.world import RayCluster
from perdure.ledger import BadRequest, HostUnavailable, LedgerUnwritable, Overloaded, SupervisorUnreachable
from perdure.ledger.errors import LedgerLocked
from tests.cluster.harbour import harbour
from tests.tidy import IMPORT_PATH

ROOT = Path(__file__).resolve().parents[2]
SOON_S = 60.0
AT_ONCE_S = 10.0  # on a busy machine; what asks again and again whether a process lives takes longer


class ToyStore:
    """A directory with a lock."""

    def __init__(self, path: Path) -> None:
        path.mkdir(exist_ok=True)
        self._file = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise LedgerLocked(str(path), "another process owns it") from None

    def close(self) -> None:
        os.close(self._file)


class ToySupervisor:
    """Does what a frame says."""

    def __init__(self, world: Any, fleet: Any, store: Any, agent_storages: Any, limits: Any) -> None:
        self._fleet = fleet
        self._ready, self._released, self._holding = asyncio.Event(), asyncio.Event(), 0

    async def serve(self) -> None:
        self._survivors = await self._fleet.survivors()
        self._ready.set()
        await asyncio.Event().wait()

    async def exchange(self, frame: bytes) -> bytes:
        await self._ready.wait()
        word, *arguments = json.loads(frame)
        return json.dumps(await getattr(self, word)(*arguments)).encode()

    async def echo(self, said: Any) -> Any:
        return said

    async def hold(self) -> None:
        self._holding += 1
        await self._released.wait()

    async def holding(self) -> int:
        return self._holding

    async def release(self) -> None:
        self._released.set()

    async def spawn(self, host_id: str, num_cpus: float = 0.0, runtime_env: str = "") -> None:
        await self._fleet.spawn(host_id, PoolSpec(num_cpus, (), runtime_env))

    async def death(self, host_id: str) -> Any:
        return await self._fleet.death(host_id)

    async def is_known(self, host_id: str) -> bool:
        return bool(self._fleet._hosts[host_id]._near)  # noqa: SLF001 - nothing public tells

    async def kill(self, host_id: str) -> None:
        await self._fleet.kill(host_id)

    async def survivors(self) -> Any:
        return {host_id: spec.num_cpus for host_id, spec in self._survivors.items()}

    async def code(self) -> str:
        return str(find_spec("perdure").origin)  # type: ignore[union-attr]

    async def refuse(self) -> None:
        raise Overloaded(5, 4, 100)

    async def fail(self) -> None:
        raise KeyError("a bug")


class ToyHost:
    """Stays, fails, or retires after an echo from the supervisor, as its id says."""

    def __init__(
        self, world: Any, transport: Any, agent_storages: Any, host_id: str, limits: Any, *place: object
    ) -> None:
        self._transport, self._host_id = transport, host_id

    async def serve(self) -> str:
        if self._host_id == "faulty":
            raise ValueError("no good")
        if self._host_id != "brief":
            await asyncio.Event().wait()
        heard = json.loads(await self._transport.exchange(b'["echo", "hello"]'))
        return f"retired after {heard}"


class ToyPlace:
    """A disk, or the storages of a process."""

    def __init__(self, inside: Any, *_: object) -> None:
        self._inside = inside


TOYS = Implementations(*(f"script:{__file__}:Toy{name}" for name in ("Supervisor", "Host", "Store", "Place", "Place")))


def ask(transport: RayTransport, *frame: Any) -> Any:
    return asyncio.run(asking(transport, *frame))


async def asking(transport: RayTransport, *frame: Any) -> Any:
    return json.loads(await transport.exchange(json.dumps(frame).encode()))


def soon(question: Callable[[], Any]) -> Any:
    """The first answer that is not empty."""
    end_s = time.monotonic() + SOON_S
    while time.monotonic() < end_s:
        with suppress(SupervisorUnreachable):
            if answer := question():
                return answer
        time.sleep(0.02)
    pytest.fail("that took too long")


def process_of(cluster: RayCluster, key: str) -> ProcessId:
    info: ProcessInfo = soon(lambda: cluster.processes().get(key))
    return info.process


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def cluster(data: Path) -> Iterator[RayCluster]:
    cluster = on_own_thread(
        lambda: RayCluster.start(data, implementations=TOYS, num_cpus=2)
    ).result()  # a thread that ends takes no Ray along
    (data / "ledger").mkdir(exist_ok=True)
    yield cluster
    cluster.close()


@pytest.fixture
def transport(cluster: RayCluster) -> RayTransport:
    return cluster.transport()


def test_an_exchange_goes_there_and_back(transport: RayTransport) -> None:
    assert ask(transport, "echo", ["ü", 1, "x" * 300_000]) == ["ü", 1, "x" * 300_000]


def test_hundreds_of_exchanges_are_held_open_and_delay_no_other(transport: RayTransport) -> None:
    async def story() -> None:
        held = [asyncio.create_task(asking(transport, "hold")) for _ in range(500)]
        async with asyncio.timeout(SOON_S):
            while await asking(transport, "holding") < len(held):
                await asyncio.sleep(0.05)
            assert await asking(transport, "echo", 1) == 1
            assert not any(each.done() for each in held)
            await asking(transport, "release")
            await asyncio.gather(*held)

    asyncio.run(story())


def test_what_the_supervisor_raises_for_the_caller_arrives_as_it_is(transport: RayTransport) -> None:
    with pytest.raises(Overloaded) as refused:
        ask(transport, "refuse")
    assert refused.value.retry_after_ms == 100
    with pytest.raises(SupervisorUnreachable, match="the supervisor failed: KeyError: 'a bug'"):
        ask(transport, "fail")


@pytest.mark.parametrize(("host_id", "cause"), [("brief", "retired after hello"), ("faulty", "ValueError: no good")])
def test_a_host_that_ends_says_why_and_its_process_is_gone(transport: RayTransport, host_id: str, cause: str) -> None:
    ask(transport, "spawn", host_id)
    assert ask(transport, "death", host_id) == cause


def test_the_death_of_a_host_is_seen_at_once(cluster: RayCluster, transport: RayTransport) -> None:
    async def story() -> tuple[str, float]:
        await asking(transport, "spawn", "victim")
        victim = await asyncio.to_thread(process_of, cluster, "victim")
        death = asyncio.create_task(asking(transport, "death", "victim"))
        await asking(transport, "echo", 1)  # by which the question before it has gone, too
        began_s = time.monotonic()
        kill([victim])
        return await death, time.monotonic() - began_s

    cause, took_s = asyncio.run(story())
    assert "its process was killed" in cause
    assert took_s < AT_ONCE_S


def test_even_a_host_that_stands_still_can_be_killed(cluster: RayCluster, transport: RayTransport) -> None:
    ask(transport, "spawn", "frozen")
    process = process_of(cluster, "frozen")
    soon(lambda: ask(transport, "is_known", "frozen"))
    os.kill(process.pid, signal.SIGSTOP)
    ask(transport, "kill", "frozen")
    ask(transport, "death", "frozen")
    assert not is_alive(process)
    ask(transport, "kill", "frozen")


@pytest.mark.parametrize(
    ("wish", "problem"),
    [
        ((64.0,), "no node has 64 CPU .* and this Ray has no other nodes to come"),
        ((0.0, "{bad"), "Expecting property name"),
        ((0.0, '{"package": "lost"}'), "the code of its agents is gone: .*/code/lost.zip"),
    ],
)
def test_a_host_that_can_never_be_is_refused(transport: RayTransport, wish: tuple[Any, ...], problem: str) -> None:
    with pytest.raises(HostUnavailable, match=problem):
        ask(transport, "spawn", "impossible", *wish)


def test_a_killed_supervisor_comes_back_and_finds_its_hosts(cluster: RayCluster, transport: RayTransport) -> None:
    ask(transport, "spawn", "survivor", 0.5)
    host = process_of(cluster, "survivor")
    before = process_of(cluster, "supervisor")

    kill([before])

    assert soon(lambda: ask(transport, "echo", "back")) == "back"
    assert process_of(cluster, "supervisor") != before
    assert ask(transport, "survivors")["survivor"] == 0.5
    kill([host])
    assert "its process was killed" in ask(transport, "death", "survivor")


def test_a_ledger_that_will_not_open_is_told_and_tried_again(
    cluster: RayCluster, transport: RayTransport, data: Path
) -> None:
    before = process_of(cluster, "supervisor")
    ledger = os.open(data / "ledger", os.O_RDONLY)
    try:
        kill([before])
        assert wait_until_gone([before], SOON_S) == []
        fcntl.flock(ledger, fcntl.LOCK_EX)
        refused = soon(lambda: _refusal(transport))
        life = process_of(cluster, "supervisor")
    finally:
        os.close(ledger)
    assert (refused.path, refused.problem) == (str(data / "ledger"), "another process owns it")
    assert soon(lambda: not _refusal(transport))
    assert process_of(cluster, "supervisor") == life


def _refusal(transport: RayTransport) -> LedgerLocked | None:
    try:
        ask(transport, "echo", 1)
    except LedgerLocked as refused:
        return refused
    return None


SECOND = """
import sys
from pathlib import Path
from perdure.actors.ray_world.world import RayCluster
cluster = RayCluster.start(Path(sys.argv[1]))
print(cluster.own, *cluster.processes()["supervisor"].process)
cluster.close()
"""


def test_a_second_process_joins_the_running_one_and_leaves_it_alone(
    cluster: RayCluster, transport: RayTransport, data: Path, tmp_path: Path
) -> None:
    supervisor = process_of(cluster, "supervisor")
    command = [sys.executable, "-c", SECOND, str(data)]
    environment = {"PYTHONPATH": IMPORT_PATH, "HOME": os.environ["HOME"]}
    said = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", *map(str, supervisor)]
    assert ask(transport, "echo", 1) == 1


def test_two_directories_share_the_ray_of_their_process(
    cluster: RayCluster, transport: RayTransport, data: Path, tmp_path: Path
) -> None:
    other = RayCluster.start(tmp_path, implementations=TOYS)
    again = RayCluster.start(data, implementations=TOYS)
    assert (other.own, other.address) == (True, cluster.address)
    assert ask(other.transport(), "echo", 1) == 1
    process = process_of(other, "supervisor")
    assert process != process_of(again, "supervisor") == process_of(cluster, "supervisor")
    other.close()
    again.close()
    assert not is_alive(process)
    assert read_record(tmp_path) is None
    assert ask(transport, "echo", 2) == 2


def test_a_process_that_is_in_a_ray_cannot_join_another(cluster: RayCluster, tmp_path: Path) -> None:
    port = cluster.address.rpartition(":")[2]
    RayCluster.start(tmp_path, implementations=TOYS, address=f"127.0.0.1:{port}").close()
    with pytest.raises(BadRequest, match=r"in the Ray at .* already.*join 127\.0\.0\.1:1 from another process"):
        RayCluster.start(tmp_path, implementations=TOYS, address="127.0.0.1:1")


def test_ray_s_processes_are_still_known_by_the_marks_that_they_had(
    cluster: RayCluster, transport: RayTransport
) -> None:
    """The canary for the texts in `ray_internals` that only a running Ray shows."""
    gcs, raylet = children(this_process(), GCS), children(this_process(), RAYLET)
    assert (len(gcs), len(raylet)) == (1, 1)
    assert {*gcs, *raylet} == set(children(this_process(), SESSION, cluster.session)), "and nothing that we do not use"
    assert process_of(cluster, "supervisor") in workers_of(raylet[0])
    ask(transport, "spawn", "early")
    assert soon(lambda: children(raylet[0], IDLE_WORKER))


def test_metrics_are_made_when_they_are_first_used(cluster: RayCluster) -> None:
    sink = RayMetrics()
    for _ in range(2):
        sink.count("runs", tags={"status": "completed"})
        sink.gauge("hosts", 3)
        sink.observe("recovery_ms", 12.5, {"who": "host"})


def test_a_directory_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerUnwritable, match="it cannot be written"):
        RayCluster.start(tmp_path / "file" / "data", implementations=TOYS)


@pytest.mark.parametrize("mark", [GCS, RAYLET])
def test_a_ray_whose_heart_is_killed_is_replaced_under_who_uses_it(
    cluster: RayCluster, transport: RayTransport, data: Path, mark: str
) -> None:
    ask(transport, "spawn", "resident")
    process_of(cluster, "resident")
    before, family = cluster.address, descendants(this_process(), SESSION)

    async def story() -> None:
        held = asyncio.create_task(asking(transport, "hold"))
        async with asyncio.timeout(SOON_S):
            while not await asking(transport, "holding"):
                await asyncio.sleep(0.05)
        kill(children(this_process(), mark))
        with pytest.raises(SupervisorUnreachable, match=r"died|rpc|unavailable"):
            await held

    asyncio.run(story())
    assert soon(lambda: ask(transport, "echo", "again")) == "again"
    assert ask(transport, "survivors") == {}
    assert cluster.address != before
    record = read_record(data)
    assert record is not None
    assert record.address == cluster.address
    assert [each for each in family if is_alive(each)] == []


def test_everything_may_be_killed_and_started_again_and_nothing_stays_behind(
    cluster: RayCluster, transport: RayTransport, data: Path
) -> None:
    family = descendants(this_process(), SESSION)
    cluster.kill_everything()
    assert len(family) > 5
    assert [each for each in family if is_alive(each)] == []
    assert read_record(data) is None
    with pytest.raises(SupervisorUnreachable, match="it was killed"):
        ask(transport, "echo", 1)

    again = RayCluster.start(data, implementations=TOYS, num_cpus=2)
    assert soon(lambda: ask(again.transport(), "echo", "again")) == "again"
    assert ask(again.transport(), "survivors") == {}
    family = descendants(this_process(), SESSION)
    again.close()
    again.close()
    assert [each for each in family if is_alive(each)] == []
    with pytest.raises(BadRequest, match="only a Ray that this process has started"):
        again.kill_everything()


def test_a_cluster_without_our_code_receives_it_and_outlives_us(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "harbour"
    home.mkdir()
    monkeypatch.setenv(AUTH, "disabled")
    with harbour(home, {"HOME": str(home), AUTH: "disabled"}) as address:
        cluster = RayCluster.start(tmp_path / "data", address=address, implementations=TOYS)
        assert not cluster.own
        transport = cluster.transport()
        assert soon(lambda: ask(transport, "echo", "far")) == "far"
        ask(transport, "spawn", "abroad", 1, json.dumps({"env_vars": {"A": "1"}}))
        processes = [process_of(cluster, "supervisor"), process_of(cluster, "abroad")]
        assert "runtime_resources" in ask(transport, "code"), "the code was sent"
        cluster.close()
        assert all(map(is_alive, processes))
    with pytest.raises(SupervisorUnreachable, match="no Ray answers at"):
        RayCluster.start(tmp_path / "data", address=address, implementations=TOYS)
