"""A directory that is backed up while its agents are at work: the copy is one moment, and goes on from there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from perdure.actors import Agent, Client, Detached, Fleet, RunContext, RunInfo, RunResult, Supervisor, World, exposed
from perdure.actors.sim_world.simulation import Weather, on_death
from perdure.ledger.bucket_history import Moment
from perdure.ledger.maintenance.backup import Backup
from perdure.ledger.maintenance.bucket_restoration import restore_directory_to_bucket, restore_to_directory
from perdure.ledger.maintenance.restoration import restore_backup
from perdure.ledger.maintenance.target import BackupTarget
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.scenarios.commands.keep import diagnosis
from perdure.scenarios.testing.checks import unfinished
from perdure.scenarios.testing.laboratory import QUICK, Laboratory
from tests.ledger.directories import formatted

LIMITS = replace(QUICK, idle_ms=300, checkpoint_idle_ms=500)
RELAYS, HOPS = 2, 15


class Hop(Agent):
    """Writes, and returns what it was given."""

    async def run(self, input: int, run: RunContext) -> int:
        self.state["given"] = input
        await asyncio.sleep(0.03)
        return input


class Relay(Agent):
    """Has one hop after the other made. What it is told of one and the request of the next are one transaction."""

    def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS told (hop BIGINT)")

    @exposed(repeatable=True)
    async def begin(self, hops: int = HOPS) -> None:
        self.state["hops"] = hops
        await self._hop(0)

    async def on_hop(self, _run: RunInfo, result: RunResult[int]) -> None:
        self.sql("INSERT INTO told VALUES ($1)", [result.output])
        if result.output < self.state["hops"]:
            await self._hop(result.output + 1)

    async def _hop(self, number: int) -> None:
        await self.run_agent_tool(Hop, number, run_id=f"{self.name}-{number}", detached=Detached(on_finish="on_hop"))

    @exposed(repeatable=True)
    def told(self) -> list[int]:
        return [hop for (hop,) in self.sql("SELECT hop FROM told ORDER BY rowid")]


class Workshop(Laboratory):
    """A simulated cluster on real files."""

    def __init__(self, data: Path, seed: int = 1) -> None:
        super().__init__(seed, Weather.calm(), LIMITS, checked=False)
        self.data, self.disk = formatted(data), FileDisk(data / "agents")  # type: ignore[assignment]

    def _supervisor(self, world: World, fleet: Fleet) -> Supervisor:  # type: ignore[override]
        store, agent_storages = DuckDBStore(self.data / "ledger", fsync=False), AgentStorages(self.disk)
        supervisor = Supervisor(world, fleet, store, agent_storages, self.limits)
        self.supervisors.append(supervisor)
        for end in (agent_storages.crash, store.close, lambda: self.supervisors.remove(supervisor)):
            on_death(end)
        return supervisor

    @property
    def is_quiet(self) -> bool:
        view = self.supervisors[-1].view if self.supervisors else None
        return view is not None and bool(view.epoch) and not any(unfinished(view))

    def ask(self, *question: object, after_s: float = 0.0) -> object:
        """Let time pass, and ask the supervisor."""

        async def asked(client: Client) -> object:
            await asyncio.sleep(after_s)
            return await client.ask("keep", *question)

        return self.play(asked)

    def told(self) -> list[list[int]]:
        """What each relay was told."""

        async def asked(client: Client) -> list[list[int]]:
            return [await client.agent(Relay, f"r{n}").told() for n in range(RELAYS)]

        return self.play(asked)

    def begin(self) -> None:
        async def asked(client: Client) -> None:
            for n in range(RELAYS):
                await client.agent(Relay, f"r{n}").begin()

        self.play(asked)


class Steward:
    """Asks the supervisor; time passes before each question, so agents are at work between any two copies."""

    def __init__(self, workshop: Workshop, before_cut: Callable[[], object] = lambda: None) -> None:
        self._workshop, self._before_cut = workshop, before_cut

    def hold(self) -> object:
        return self._workshop.ask("hold", [], after_s=0.11)

    def cut(self) -> object:
        self._before_cut()
        return self._workshop.ask("cut", [])


@pytest.fixture
def target() -> BackupTarget:
    """An object store that is no directory."""
    return BackupTarget(f"memory://{uuid4().hex}")


def all_hops() -> list[list[int]]:
    return [list(range(HOPS + 1))] * RELAYS


def damage(data: Path) -> list[str]:
    return [each.what for each in diagnosis(data, deep=True) if each.severity != "ok"]


@pytest.mark.parametrize("seed", [1, 2])
def test_what_was_backed_up_amid_the_work_goes_on_from_one_moment_exactly_once(
    tmp_path: Path, target: BackupTarget, seed: int
) -> None:
    with Workshop(tmp_path / "data", seed) as workshop:
        workshop.begin()
        while not all(workshop.told()):
            pass  # a host is made for one of them; each question takes some time
        made = Backup(tmp_path / "data", target, Steward(workshop), print).make(1)
        told = workshop.told()
        assert all(told), "every relay had begun"
        assert told != all_hops(), "none was done"
    restore_backup(target, tmp_path / "copy")
    assert not damage(tmp_path / "copy")
    assert made.findings == []
    with Workshop(tmp_path / "copy") as copy:
        copy.rest()
        assert copy.told() == all_hops()


def test_what_was_in_a_bucket_meanwhile_goes_on_exactly_once(tmp_path: Path) -> None:
    data, copy, url = tmp_path / "data", tmp_path / "copy", f"file://{tmp_path}/bucket"
    with Workshop(data, 3) as workshop:
        workshop.begin()
        while not all(workshop.told()):
            pass
        assert workshop.told() != all_hops()
    assert restore_directory_to_bucket(data, url).findings == []
    made = restore_to_directory(url, copy, Moment(), replace=False)
    assert made.storages > RELAYS
    assert not damage(copy)
    with Workshop(copy) as again:
        again.rest()
        assert again.told() == all_hops()


def test_a_supervisor_that_dies_before_the_cut_has_the_backup_begin_again(tmp_path: Path, target: BackupTarget) -> None:
    said: list[str] = []
    with Workshop(tmp_path / "data") as workshop:
        deaths = ["supervisor"]
        workshop.begin()
        steward = Steward(workshop, before_cut=lambda: deaths and workshop.simulation.kill(deaths.pop()))
        Backup(tmp_path / "data", target, steward, said.append).make(1)
        workshop.rest()
        assert workshop.told() == all_hops()
    assert any("changed meanwhile" in each for each in said)
    restore_backup(target, tmp_path / "copy")
    assert not damage(tmp_path / "copy")
    with Workshop(tmp_path / "copy") as copy:
        copy.rest()
        assert copy.told() == all_hops()


def test_no_checkpoint_is_taken_while_a_backup_is_made_and_they_go_on_if_it_dies(tmp_path: Path) -> None:
    with Workshop(tmp_path / "data") as workshop:
        held = workshop.ask("hold", [])
        workshop.begin()
        assert workshop.ask("hold", [], after_s=20) == held
        assert workshop.ask("hold", [], after_s=60) != held


def test_a_world_without_files_says_so() -> None:
    with Laboratory(1, limits=LIMITS) as laboratory:
        with pytest.raises(Exception, match="no files in this world"):
            laboratory.play(lambda client: client.ask("keep", "cut", []))
        with pytest.raises(Exception, match="not one that a supervisor knows"):
            laboratory.play(lambda client: client.ask("keep", "everything", []))
