"""A storage that lacks what its agent had reported: the agent does not go on as if that had never been, until the operator decides."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import duckdb
import pytest

from perdure.actors import Agent, Occurrence, exposed
from perdure.ledger import StorageError, StorageLost
from perdure.ledger.duckdb_format import BLOCKS_AT
from perdure.ledger.inspection import parked
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
from perdure.ledger.storage.log_format import COMMIT, read_log
from tests.actors.cast import Boss, Worker
from tests.actors.one_process import SMALL, OneProcess
from tests.kit import ROOMY, Stage, address, staged

LIMITS = replace(ROOMY, idle_ms=200, checkpoint_idle_ms=1_000)


class Diary(Agent):
    """Writes down what it is told."""

    @exposed
    def write(self, line: str) -> None:
        self.state["lines"] = [*self.state.get("lines", []), line]

    @exposed(repeatable=True)
    def lines(self) -> list[str]:
        lines: list[str] = self.state.get("lines", [])
        return lines

    @exposed
    def plan(self, seconds: float) -> None:
        self.schedule(seconds, "remember", "planned")

    def remember(self, line: str, _occurrence: Occurrence) -> None:
        """The time has come."""
        self.write(line)


DIARY = address(Diary, "p")


async def asleep(stage: Stage, agent: str = DIARY) -> None:
    await stage.until(lambda: not stage.host_of(agent))


def emptied(stage: Stage, agent: str = DIARY) -> str | bytearray | None:
    """Take the storage away; returns what was in its place."""
    return stage.laboratory.disk.exchange(agent, None)


def cut(stage: Stage, agent: str = DIARY) -> str | bytearray | None:
    """Leave the storage without its last commit; returns a whole copy."""
    whole = emptied(stage, agent)
    assert isinstance(whole, bytearray)
    last = [frame.start for frame in read_log(bytes(whole)).frames if frame.kind == COMMIT][-1]
    stage.laboratory.disk.exchange(agent, whole[:last])
    return whole


def cut_as_database(stage: Stage, agent: str = DIARY) -> str | bytearray | None:
    """The same for one that has become a database."""
    disk = stage.laboratory.disk
    with closing(AgentStorages(disk)) as agent_storages:
        agent_storages.fork(agent, "twin@m:T")  # whoever is copied is a database
    copy = disk.stage("copy@m:T", disk)
    database = disk.attach(agent, disk)
    disk.copy(agent, database, copy)
    lane = disk.lane(agent, database)
    lane.run("DELETE FROM perdure.records WHERE number = (SELECT max(number) FROM perdure.records)")
    lane.run("UPDATE perdure.meta SET clock = 1")  # when it became a database, it had come so far without that record
    lane.shut()
    disk.detach(agent, database, checkpoint=True)
    return copy


async def written(stage: Stage, *lines: str) -> None:
    for line in lines:
        await stage.call(Diary, "write", line)
    await asleep(stage)


@pytest.mark.parametrize("harm", [emptied, cut, cut_as_database])
@pytest.mark.parametrize("later_ms", [0, 60_000])
@staged(limits=LIMITS)
async def test_an_agent_that_has_forgotten_something_refuses_calls_until_a_copy_is_put_back(
    stage: Stage, harm: type[emptied], later_ms: int
) -> None:
    await written(stage, "a", "b")
    await asyncio.sleep(later_ms / 1000)  # so that only the snapshot knows
    if later_ms:
        stage.simulation.kill("supervisor")
    whole = harm(stage)
    for _ in range(2):
        with pytest.raises(StorageLost, match=r"had reported that it came to \d+, and .*perdure forget"):
            await stage.call(Diary, "write", "c")
        await asleep(stage)
    stage.laboratory.disk.exchange(DIARY, whole)
    await stage.call(Diary, "write", "d")
    assert await stage.call(Diary, "lines") == ["a", "b", "d"]


@pytest.mark.parametrize("later_ms", [0, 60_000])
@staged(limits=LIMITS)
async def test_an_agent_that_is_deleted_begins_anew(stage: Stage, later_ms: int) -> None:
    await written(stage, "a")
    await asyncio.sleep(later_ms / 1000)
    emptied(stage)
    with pytest.raises(StorageLost):
        await stage.call(Diary, "lines")
    await stage.client.ask("forget", DIARY)
    assert await stage.call(Diary, "lines") == []
    await written(stage, "b")
    await asyncio.sleep(later_ms / 1000)
    assert await stage.call(Diary, "lines") == ["b"]


@staged(limits=LIMITS)
async def test_an_agent_that_never_wrote_has_nothing_to_lose(stage: Stage) -> None:
    for _ in range(3):
        assert await stage.call(Diary, "lines") == []
        await asleep(stage)
        await asyncio.sleep(10)


@staged(limits=LIMITS)
async def test_a_run_whose_child_has_forgotten_its_steps_is_interrupted_with_the_cause_and_goes_on_with_a_copy(
    stage: Stage,
) -> None:
    child = address(Worker, "c")
    work = {"steps": 4, "pause_ms": 1_000}
    handle = await stage.client.start(Worker, work, run_id="c")
    await stage.until(lambda: (run := stage.record(handle.run_id)) is not None and run.progress is not None)
    await asyncio.sleep(1.5)
    stage.kill_host_of(child)
    whole = emptied(stage, child)
    run = await stage.ended("c", "interrupted")
    assert run.reason == "inspect-failed"
    assert "StorageLost" in run.error
    told = "\n".join(await stage.client.ask("explain", "c"))
    assert "had reported that it came to" in told
    stage.laboratory.disk.exchange(child, whole)
    again = await stage.client.run(Worker, work, run_id="c")
    assert again.output["steps"] == [0, 1, 2, 3]


@staged(limits=LIMITS)
async def test_mail_for_an_agent_that_has_forgotten_something_is_parked_and_delivered_when_it_is_asked_for_again(
    stage: Stage,
) -> None:
    boss = address(Boss, "p")
    await stage.call(Boss, "detach", "Worker", {"steps": 2, "pause_ms": 3_000}, "c")
    await asleep(stage, boss)
    whole = emptied(stage, boss)
    await stage.until(lambda: bool(parked(stage.view)))
    (mail,) = parked(stage.view)
    assert "StorageLost" in mail["error"]
    stage.laboratory.disk.exchange(boss, whole)
    await stage.client.ask("retry", mail["mail_id"])
    await stage.until(lambda: not stage.view.mail)
    assert [row[2] for row in await stage.call(Boss, "told")] == ["completed"]


@staged(limits=LIMITS)
async def test_what_was_planned_is_done_when_a_copy_is_put_back(stage: Stage) -> None:
    await stage.call(Diary, "plan", 20)
    await asleep(stage)
    whole = emptied(stage)
    await asyncio.sleep(60)
    stage.laboratory.disk.exchange(DIARY, whole)
    await asyncio.sleep(60)
    assert await stage.call(Diary, "lines") == ["planned"]


class Archive(Agent):
    """Keeps much in a table, and looks at it in a handler, in a run and in a call."""

    stands_alone = True

    @exposed
    def fill(self) -> None:
        self.sql("CREATE TABLE kept (line VARCHAR)")
        self.sql("INSERT INTO kept SELECT repeat(md5(i::VARCHAR), 9) FROM range(3000) r(i)")

    @exposed
    def read(self) -> str:
        return str(self.sql("SELECT max(line) FROM kept"))

    async def run(self, input: int) -> str:
        self.state["begun"] = input
        return self.read()


def logs_in(directory: Path) -> list[Path]:
    return list(directory.glob("*/*.db.wal"))


def damage(directory: Path) -> None:
    """Flip a bit in each block of each author's table."""
    for file in directory.glob("*/*.db"):
        with duckdb.connect(file, read_only=True) as con:
            found = con.execute(
                "SELECT DISTINCT block_id FROM pragma_storage_info('kept') WHERE block_id >= 0"
            ).fetchall()
        body = bytearray(file.read_bytes())
        for (block,) in found:
            body[BLOCKS_AT + block * 16_384 + 100] ^= 4
        file.write_bytes(body)


def test_a_damaged_block_parks_mail_and_interrupts_runs_as_a_lost_storage_and_not_as_a_failure_of_code(
    tmp_path: Path,
) -> None:
    async def before(place: OneProcess) -> None:
        for name in ("called", "told", "runs"):
            await place.client.call(Archive, name, "fill", (), {})
        await place.until(lambda: not logs_in(tmp_path))  # they sleep, and all is in their blocks

    async def after(place: OneProcess) -> None:
        client = place.client
        with pytest.raises(StorageLost, match="is damaged"):
            await client.call(Archive, "called", "read", (), {})
        view = place.supervisor.view  # there is none before the first answer
        await client.tell(client.address(Archive, "told"), "read", (), {})
        await place.until(lambda: bool(parked(view)))
        (mail,) = parked(view)
        assert "StorageLost" in mail["error"]
        assert view.mail[mail["mail_id"]].attempts <= 1
        await client.start(Archive, 1, run_id="runs")
        await place.until(lambda: view.runs["runs"].status == "interrupted")
        assert "StorageLost" in view.runs["runs"].error

    asyncio.run(OneProcess(SMALL, disk=FileDisk(tmp_path)).play(before))
    damage(tmp_path)
    asyncio.run(OneProcess(SMALL, disk=FileDisk(tmp_path)).play(after))


class Refusing(FileDisk):
    """Refuses what is written while it is full."""

    is_full = False

    def wrote(self, agent_id: str, incarnation: int) -> None:
        super().wrote(agent_id, incarnation)
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_the_first_call_after_room_was_made_opens_the_storage_again(tmp_path: Path) -> None:
    disk = Refusing(tmp_path)

    async def story(place: OneProcess) -> None:
        client = place.client
        await client.call(Diary, "p", "write", ("one",), {})
        disk.is_full = True
        with pytest.raises(StorageError, match=r"next call opens it again by itself"):
            await client.call(Diary, "p", "write", ("two",), {})
        disk.is_full = False
        await client.call(Diary, "p", "write", ("three",), {})
        assert (await client.call(Diary, "p", "lines", (), {}))[-1] == "three"

    limits = replace(SMALL, sweep_ms=60_000, heartbeat_ms=60_000)
    asyncio.run(OneProcess(limits, disk=disk).play(story))
