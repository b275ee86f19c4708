"""A directory is known by a word of its own. A machine that has another one at its path, or none, is refused, and nothing is written."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.actors.ports import PoolSpec
from perdure.actors.ray_world import identity, supervisors
from perdure.actors.ray_world.cluster_nodes import Node, Nodes, among, apart_from, lack
from perdure.actors.ray_world.cluster_record import begin_directory, startup_lock
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.identity import (
    IDENTITY,
    identity_of,
    note_mount,
    refuse_elsewhere,
    refuse_unmounted,
    unlike,
)
from perdure.actors.ray_world.supervisors import Opening, ensure_supervisor, find_again
from perdure.ledger import DirectoryElsewhere, LedgerDamaged
from perdure.policies import Limits
from tests.kit import Stage, play

COPY = Path("ledger") / IDENTITY


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with startup_lock(tmp_path / "data"):
        begin_directory(tmp_path / "data")
    return tmp_path / "data"


def test_a_new_directory_has_a_word_which_stays_and_no_other_has_it(data: Path, tmp_path: Path) -> None:
    word = identity_of(data)
    assert word == (data / IDENTITY).read_text().strip() == (data / COPY).read_text().strip() != ""
    assert begin_directory(data) == word
    (tmp_path / "other").mkdir()
    assert begin_directory(tmp_path / "other") != word


@pytest.mark.parametrize("lost", [IDENTITY, str(COPY)])
@pytest.mark.parametrize("content", [None, b""])
def test_a_word_that_was_deleted_is_not_made_anew(data: Path, lost: str, content: bytes | None) -> None:
    word = identity_of(data)
    (data / lost).unlink() if content is None else (data / lost).write_bytes(content)
    assert unlike(data, word) == ""
    assert begin_directory(data) == word
    assert (data / lost).read_text().strip() == word


@pytest.mark.parametrize("foreign", [b"0123456789abcdef\n", b"\xff\xfe\n"])
def test_files_of_two_directories_are_refused_and_left_as_they_are(data: Path, foreign: bytes) -> None:
    (data / IDENTITY).write_bytes(foreign)
    before = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    for job in (begin_directory, identity_of, lambda each: refuse_elsewhere(each, "any")):
        with pytest.raises((LedgerDamaged, DirectoryElsewhere), match="files of two directories"):
            job(data)
    assert {path: path.read_bytes() for path in data.rglob("*") if path.is_file()} == before


def test_a_directory_that_is_restored_without_its_word_gets_another_one(data: Path) -> None:
    for each in (IDENTITY, COPY):
        (data / each).unlink()
    assert begin_directory(data) == identity_of(data) != ""


def test_a_machine_says_what_it_has_instead(data: Path, tmp_path: Path) -> None:
    word = identity_of(data)
    assert (unlike(data, word), unlike(data, "")) == ("", "")
    assert unlike(data, "0123456789abcdef") == "another directory"
    shutil.rmtree(data)
    assert unlike(data, word) == "no such directory"
    data.mkdir()
    assert "not mounted" in unlike(data, word)
    (data / "format").write_text("4\n")
    assert unlike(data, word) == "another directory"
    with pytest.raises(
        DirectoryElsewhere, match=r"has another directory at this path.*mount the directory's storage there"
    ):
        refuse_elsewhere(data, word)


def known_to_ray(patch: pytest.MonkeyPatch, *homes: tuple[str, bool]) -> list[str]:
    """Ray knows of these supervisors at the path, one after the other: which directory each serves, and whether it could not begin. Returns
    those that were ended."""
    there, ended = [*homes], list[str]()

    def find(_: Deployment) -> str:
        if not there:
            raise ValueError("nobody has this name")
        return f"supervisor {len(there)}"

    def end(handle: str) -> None:
        ended.append(handle)
        there.pop()

    patch.setattr(supervisors, "find_supervisor", find)
    patch.setattr(supervisors, "control", lambda handle, _method: str(handle))
    patch.setattr(supervisors, "kill", end)
    patch.setattr(supervisors, "create", lambda *_, **__: "a new one")
    patch.setattr(supervisors, "answer_of", lambda _asked, _timeout_s: there[-1])
    context = SimpleNamespace(gcs_address="", get_node_id=lambda: "0" * 56, runtime_env={})
    patch.setattr("ray.get_runtime_context", lambda: context)
    return ended


def files_of(data: Path) -> list[str]:
    return sorted(str(path.relative_to(data)) for path in data.rglob("*"))


def test_nothing_is_begun_at_an_empty_path_for_which_ray_knows_a_supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that shares no storage, or whose mount is missing since it was started again."""
    known_to_ray(monkeypatch, ("theirs", False))
    with startup_lock(tmp_path), pytest.raises(DirectoryElsewhere, match="not mounted"):
        Opening(Deployment(tmp_path, Limits())).ensure(own=False)
    assert files_of(tmp_path) == ["cluster.lock"]


def test_a_mount_that_is_lost_while_a_program_has_it_open_is_not_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    known_to_ray(monkeypatch)
    opening = Opening(Deployment(data, Limits()))
    with startup_lock(data):
        assert opening.ensure(own=True) == "a new one"
    assert opening.deployment.identity == identity_of(data)
    shutil.rmtree(data)
    with startup_lock(data), pytest.raises(DirectoryElsewhere):
        opening.ensure(own=True)
    assert files_of(data) == ["cluster.lock"]


def test_a_mount_that_is_missing_after_a_reboot_is_not_begun_anew_and_a_directory_that_was_deleted_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    disk = tmp_path / "disk"
    mounted = {"is": True}
    monkeypatch.setattr(
        identity,
        "mount_of",
        lambda folder: (str(disk), "ext4") if mounted["is"] and folder.is_relative_to(disk) else ("/", "ext4"),
    )

    def opened(data: Path) -> None:
        with startup_lock(data):
            refuse_unmounted(data)
            begin_directory(data)
            note_mount(data)

    opened(disk / "data")
    opened(tmp_path / "plain")
    for data in (disk / "data", tmp_path / "plain"):
        shutil.rmtree(data)
        opened(data)
    shutil.rmtree(disk)
    mounted["is"] = False
    with pytest.raises(DirectoryElsewhere, match=re.escape(f"nothing is mounted at {disk}")):
        opened(disk / "data")
    assert [path.name for path in (disk / "data").iterdir()] == ["cluster.lock"]
    opened(disk / "another")
    mounted["is"] = True
    opened(disk / "data")
    (tmp_path / "state" / "perdure" / "mounts.json").write_bytes(b"\xff garbage")
    opened(disk / "third")
    assert list(json.loads((tmp_path / "state" / "perdure" / "mounts.json").read_bytes())) == [str(disk / "third")]


def test_a_supervisor_of_another_directory_at_the_same_path_is_not_taken(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known_to_ray(monkeypatch, ("another", False))
    with startup_lock(data), pytest.raises(DirectoryElsewhere, match="than the one that this Ray serves"):
        Opening(Deployment(data, Limits())).ensure(own=False)


@pytest.mark.parametrize("find", [ensure_supervisor, find_again])
def test_a_supervisor_that_could_not_begin_elsewhere_is_replaced_here(
    data: Path, monkeypatch: pytest.MonkeyPatch, find: Callable[[Deployment], Any]
) -> None:
    deployment = Deployment(data, Limits(), identity=identity_of(data))
    monkeypatch.setattr(supervisors, "refuse_if_stopped", lambda *_: None)
    ended = known_to_ray(monkeypatch, (deployment.identity, False))
    assert (find(deployment), ended) == ("supervisor 1", [])
    ended = known_to_ray(monkeypatch, (deployment.identity, True))
    assert (find(deployment), ended) == ("a new one", ["supervisor 1"])
    shutil.rmtree(data)
    ended = known_to_ray(monkeypatch, (deployment.identity, True))
    with pytest.raises(DirectoryElsewhere):
        find(deployment)
    assert ended == [], "a machine that does not see the directory either ends nobody"


# ---------------------------------------------------------------- the nodes


class Ring:
    """Nodes that answer as the test says, and how often each was asked."""

    def __init__(self, **instead: str) -> None:
        self.instead, self.asked = instead, list[str]()
        self.nodes = Nodes(self.alive, self.ask, "own")

    def alive(self) -> list[Node]:
        names = ["own", *self.instead]
        return [
            {
                "NodeID": name,
                "NodeManagerHostname": f"host-{name}",
                "Resources": {"CPU": 1.0, name: 1.0},
                "Labels": {"ray.io/node-id": name},
                "Alive": True,
            }
            for name in names
        ]

    def ask(self, node_ids: list[str]) -> dict[str, str]:
        self.asked += node_ids
        return {each: self.instead[each] for each in node_ids}

    def seeing(self) -> list[str]:
        return [node["NodeID"] for node in self.nodes.seeing()]


def test_hosts_go_to_the_nodes_that_see_the_directory_and_each_node_is_asked_once_in_a_while() -> None:
    ring = Ring(near="", far="no such directory")
    assert (ring.seeing(), ring.seeing()) == (["own", "near"], ["own", "near"])
    assert ring.asked == ["near", "far"], "the supervisor's own is not asked"
    assert list(ring.nodes.elsewhere.items()) == [("host-far (Ray's node far)", "no such directory")]
    assert among(ring.nodes.seeing(), PoolSpec()) == {"ray.io/node-id": "in(own,near)"}
    by_id = PoolSpec(labels=(("ray.io/node-id", "!own"),))
    assert among(ring.nodes.seeing(), by_id) == {"ray.io/node-id": "in(near)"}
    assert apart_from(ring.nodes.seeing(), ring.alive()) == {"ray.io/node-id": "!in(far)"}, "others may come"
    assert apart_from(ring.alive(), ring.alive()) == {}
    far = PoolSpec(resources=(("far", 1.0),))
    assert "no node has 1 far" in lack(ring.nodes.seeing(), far)
    assert lack(ring.alive(), far) == lack(ring.nodes.seeing(), PoolSpec()) == ""
    assert "no node has 2 CPU" in lack(ring.alive(), PoolSpec(2.0))
    labelled = PoolSpec(labels=(("ray.io/node-id", "far"),))
    assert "no node has label ray.io/node-id=far (labels: none)" in lack(ring.nodes.seeing(), labelled)


def test_a_node_that_has_come_is_asked_and_one_that_has_gone_is_named_no_more() -> None:
    ring = Ring(far="no such directory")
    seen = ring.nodes.elsewhere
    assert ring.seeing() == ["own"]
    ring.instead = {"late": ""}
    assert ring.seeing() == ["own", "late"]
    assert (ring.asked, seen) == (["far", "late"], {})


def test_a_node_is_asked_again_when_a_host_has_found_no_directory_there_or_when_its_time_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = Ring(near="")
    assert ring.seeing() == ["own", "near"]
    ring.instead["near"] = "no such directory"
    assert ring.seeing() == ["own", "near"]
    ring.nodes.doubt()
    assert ring.seeing() == ["own"]
    ring.instead["near"] = ""
    monkeypatch.setattr("perdure.actors.ray_world.cluster_nodes.SOON_S", 0.0)
    ring.nodes.doubt()
    ring.instead["near"] = "another directory"
    assert ring.seeing() == ["own"]
    ring.instead["near"] = ""
    assert ring.seeing() == ["own", "near"], "it was mounted meanwhile"


def test_the_overview_names_the_nodes_that_do_not_see_the_directory() -> None:
    async def story(stage: Stage) -> Any:
        stage.simulation.cluster.elsewhere.update({"far (Ray's node 12)": "no such directory"})
        await asyncio.sleep(1)
        told = (await stage.client.ask("ps", 0))["elsewhere"]
        stage.simulation.kill("supervisor")
        await asyncio.sleep(10)
        assert (await stage.client.ask("ps", 0))["elsewhere"] == told
        return told

    (told,) = play(story)
    assert told["told"] == "node far (Ray's node 12) has no such directory at its path, so no host goes there"
