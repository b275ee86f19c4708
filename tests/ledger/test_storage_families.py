"""Storages of families: what belongs to the sub-agents of an agent goes with it, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.ledger import StorageError, sub_agent_id
from perdure.ledger.storage.agent_storages import AgentStorages, Disk, FileDisk, MemoryDisk

ROOT = "root@m:Root"
NAMES = ["a", "a>b@m:Kid", "../..", "a/b", "%2e%2e", "ä\n", "x" * 200]


@pytest.fixture(params=["files", "memory"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made: Disk = FileDisk(tmp_path / "storage") if request.param == "files" else MemoryDisk()
    yield made
    made.close()


def deep(*names: str, root: str = ROOT) -> str:
    agent = root
    for name in names:
        agent = sub_agent_id(agent, "m:Kid", name)
    return agent


def fill(agent_storages: AgentStorages, agents: list[str]) -> None:
    for agent in agents:
        storage = agent_storages.open(agent, 1)
        storage.state["id"] = agent
        storage.close()


def test_a_family_goes_with_its_agent_and_its_neighbours_stay(disk: Disk) -> None:
    agent_storages = AgentStorages(disk)
    family = [deep(name) for name in NAMES] + [deep("a", name) for name in NAMES]
    others = [ROOT, "root@m:Roots", "roo@m:Root", deep("a", root="other@m:Root"), "root@m:Root>@m:Kid"]
    fill(agent_storages, family + others)
    agent_storages.forget_family(deep("a"))
    gone = [each for each in family if each == deep("a") or each.startswith(deep("a") + ">")]
    assert len(gone) == 1 + len(NAMES)
    assert not any(disk.has(each) for each in gone)
    assert all(disk.has(each) for each in {*family, *others} - {*gone})
    agent_storages.forget_family(deep("a"))
    storage = agent_storages.open(deep("a"), 1)
    assert dict(storage.state) == {}, "and the name is free again"
    agent_storages.close()


def test_ten_generations_have_their_places_and_go_together(disk: Disk) -> None:
    agent_storages = AgentStorages(disk)
    line = [deep(*NAMES[:1] * depth) for depth in range(11)]
    fill(agent_storages, line)
    again = AgentStorages(disk)
    assert [again.open(each, 2).state["id"] for each in line] == line
    again.close()
    agent_storages.forget_family(line[0])
    assert not any(disk.has(each) for each in line)
    agent_storages.close()


def test_deleting_a_family_leaves_no_file_and_no_folder(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path / "storage")
    agent_storages = AgentStorages(disk)
    fill(agent_storages, [ROOT, deep("a"), deep("a", "b"), deep("c")])
    agent_storages.forget_family(ROOT)
    assert list((tmp_path / "storage").rglob("*.db*")) == []
    assert not disk.path_of(ROOT).with_suffix("").exists()
    agent_storages.close()
    disk.close()


def test_a_folder_that_cannot_be_deleted_is_said(tmp_path: Path) -> None:
    disk = FileDisk(tmp_path / "storage")
    folder = disk.path_of(ROOT).with_suffix("")
    folder.parent.mkdir(parents=True)
    folder.write_text("a file in its place")
    with pytest.raises(StorageError, match="cannot be deleted"):
        disk.erase_descendants(ROOT)
    disk.close()
