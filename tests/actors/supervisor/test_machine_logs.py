"""The logs of machines that share no directory: read by their hosts, for whoever asks the supervisor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure.actors import Client, ClusterLogs, WantedLogs
from perdure.actors.life.activity import Whose
from perdure.actors.log_files import PAGE_BYTES
from perdure.actors.ports import Fleet, Transport, World
from perdure.actors.ray_world.processes import ProcessLog
from perdure.actors.sim_world.sim_ports import SimVitals
from perdure.actors.sim_world.weather import Weather
from perdure.scenarios.testing.laboratory import QUICK, Laboratory
from tests.actors.cast import Doubler

CLERK = Whose("r1@desk:Clerk", "r1", "r1")
OTHER = Whose("r2@desk:Clerk", "r2", "r2")
NOW = time.time()
EVERYTHING = WantedLogs()


class Body(SimVitals):
    """A process on a machine with a name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def node(self) -> str:
        return self._name


class Apart(Laboratory):
    """The supervisor is on the machine `a`, the first host on `b`, and the others on `c`; each has its own logs."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self._folder = folder
        self.places: dict[str, str] = {}
        for name in "abcd":
            (folder / name).mkdir()
        super().__init__(1, limits=replace(QUICK, hosts_warm=3, host_idle_ms=10_000_000), carried=folder, **options)

    def log(self, machine: str, process: str = "h") -> ProcessLog:
        return ProcessLog(self._folder / machine, process, 1e9)

    def _on(self, world: World, machine: str) -> World:
        return world._replace(vitals=Body(machine), logs=self._folder / machine)

    def _supervisor(self, world: World, fleet: Fleet) -> Any:
        return super()._supervisor(self._on(world, "a"), fleet)

    def _host(self, world: World, transport: Transport, host_id: str) -> Any:
        self.places[host_id] = "b" if "b" not in self.places.values() else "c"
        return super()._host(self._on(world, self.places[host_id]), transport, host_id)

    def on(self, machine: str) -> list[str]:
        return [host_id for host_id, place in self.places.items() if place == machine]

    async def logs(self, client: Client, seen_from: str = "d") -> ClusterLogs:
        """As a program on this machine sees them, when all hosts are there."""
        while len(self.places) < 3 or not all(session.logs for session in self._host_sessions()):
            await asyncio.sleep(0.5)
        return ClusterLogs(self._folder / seen_from, client.ask)

    def _host_sessions(self) -> list[Any]:
        found = [each for each in self.supervisors[-1].sessions.by_peer.values() if each.is_host]
        return found if len(found) == 3 else [Any]


@pytest.fixture
def apart(tmp_path: Path) -> Iterator[Apart]:
    with Apart(tmp_path) as made:
        yield made


def written(log: ProcessLog, at_s: float, text: str, who: Whose | None = CLERK, level: str = "INFO") -> None:
    log.write(log.record(NOW + at_s, level, "stdout", text, who))


def told(records: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(each.get("machine", ""), each["text"]) for each in records]


def test_the_lines_of_all_machines_are_told_in_order_with_the_machine_unless_it_is_this_one(apart: Apart) -> None:
    for at, (machine, text) in enumerate([("c", "1"), ("d", "2"), ("b", "3"), ("a", "4"), ("c", "5")]):
        written(apart.log(machine), at, text, CLERK if at < 4 else OTHER, "WARNING" if at % 2 else "INFO")
    written(apart.log("c", "host that died"), 2.5, "last words")

    async def story(client: Client) -> None:
        logs = await apart.logs(client)
        everything = [("c", "1"), ("", "2"), ("b", "3"), ("c", "last words"), ("a", "4"), ("c", "5")]
        assert told(await logs.newest(EVERYTHING, 10)) == everything
        assert told(await logs.newest(WantedLogs("r1", level="WARNING"), 10)) == [("a", "4")]
        assert told(await (await apart.logs(client)).newest(EVERYTHING, 2)) == everything[-2:]
        seen_from_c = await (await apart.logs(client, "c")).newest(WantedLogs("r1"), 10)
        assert told(seen_from_c) == [("", "1"), ("b", "3"), ("", "last words"), ("a", "4")], "d has no host"
        assert await (await apart.logs(client)).newest(EVERYTHING, 0) == []

    apart.play(story)


def test_a_host_that_does_not_answer_is_replaced_by_another_and_a_machine_that_does_not_is_named(apart: Apart) -> None:
    for machine in "bc":
        written(apart.log(machine), 0, machine)

    async def story(client: Client) -> None:
        logs = await apart.logs(client)
        for host_id in [*apart.on("b"), apart.on("c")[0]]:
            apart.simulation.hang(host_id, 60_000)
        await asyncio.sleep(0)
        begun_s = asyncio.get_running_loop().time()
        read, missing = told(await logs.newest(EVERYTHING, 10))
        assert read == ("c", "c")
        assert missing == ("b", "here are missing those of a machine on which nothing answers")
        assert asyncio.get_running_loop().time() - begun_s < 6

    apart.play(story)


async def heard(pages: AsyncIterator[list[dict[str, Any]]], count: int) -> list[tuple[str, str]]:
    records: list[dict[str, Any]] = []
    while len(records) < count:
        records += await anext(pages)
    return told(records)


def test_who_follows_is_told_each_line_of_each_machine_once_whoever_dies(apart: Apart) -> None:
    log = {machine: apart.log(machine) for machine in "abcd"}
    for each in log.values():
        written(each, -60, "before")

    async def story(client: Client) -> None:
        logs = await apart.logs(client)
        assert len(await logs.newest(EVERYTHING, 2)) == 2
        pages = logs.follow(WantedLogs("r1"))
        for at in range(3):
            for each in log.values():
                written(each, at, str(at))
                written(each, at, "another's", OTHER)
            both = sorted(await heard(pages, 4))
            assert both == [("", str(at)), ("a", str(at)), ("b", str(at)), ("c", str(at))]
            if at == 0:
                apart.simulation.kill("supervisor")
            else:
                apart.simulation.kill(apart.on("c")[0])
        await pages.aclose()

    apart.play(story)


def test_a_machine_tells_at_most_256_kb_at_once_and_that_there_are_older_ones(apart: Apart) -> None:
    log = apart.log("b")
    for at in range(100):
        written(log, at, f"{at} {'x' * 10_000}")

    async def story(client: Client) -> None:
        logs = await apart.logs(client)
        notice, *records = await logs.newest(EVERYTHING, 1_000)
        assert notice["text"].startswith("here are missing older ones")
        assert PAGE_BYTES <= sum(len(each["text"]) for each in records) + 300 * len(records) < PAGE_BYTES + 20_000
        assert records[-1]["text"].startswith("99 ")
        whole: list[str] = []
        async for page in ClusterLogs(apart._folder / "d", client.ask).follow(EVERYTHING):  # noqa: SLF001
            whole += [each["text"].split()[0] for each in page]
            if len(whole) >= 100:
                break
        assert whole == [str(at) for at in range(100)], "who follows is told the rest page by page"

    apart.play(story)


def test_lines_are_told_while_the_bucket_does_not_answer(apart: Apart) -> None:
    written(apart.log("b"), 0, "why")

    async def story(client: Client) -> None:
        logs = await apart.logs(client)
        apart.simulation.change_weather(Weather(bucket_lost=1))
        waits_for_commit = asyncio.ensure_future(client.run(Doubler, {"n": 1}, run_id="d"))
        await asyncio.sleep(8)
        assert told(await logs.newest(EVERYTHING, 10)) == [("b", "why")]
        apart.heal()
        assert (await waits_for_commit).ok

    apart.play(story)


def test_a_supervisor_that_does_not_answer_is_said_and_this_machine_s_lines_are_told(apart: Apart) -> None:
    written(apart.log("d"), 0, "here")

    async def story(client: Client) -> None:
        logs = await apart.logs(client)
        apart.simulation.hang("supervisor", 60_000)
        await asyncio.sleep(0)
        own, notice = told(await logs.newest(EVERYTHING, 10))
        assert own == ("", "here")
        assert notice == ("", "here are missing those of other machines: the supervisor does not answer")

    apart.play(story)
