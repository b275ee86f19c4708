"""The idle process that is kept: when it is asked for, and what ends with its supervisor."""

from __future__ import annotations

import asyncio
import os

import pytest

from perdure.actors.ray_world import spares
from perdure.actors.ray_world.cluster_record import QUICK
from perdure.actors.ray_world.os_processes import ProcessId
from perdure.actors.ray_world.ray_internals import SETUP_HOOK
from perdure.actors.ray_world.spares import Spare

RAYLET, OURS, THEIRS = ProcessId(1, 0), ProcessId(2, 0), ProcessId(3, 0)


class Node:
    """A raylet with its idle processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.idle: list[ProcessId] = []
        self.asked: list[tuple[str, int]] = []
        self.killed: list[ProcessId] = []
        self.refuses = False
        monkeypatch.setenv(SETUP_HOOK, "a.hook")
        monkeypatch.setattr(spares, "parent_process", lambda: RAYLET)
        monkeypatch.setattr(spares, "children", lambda _raylet, _mark: list(self.idle))
        monkeypatch.setattr(spares, "value_in", self.value)
        monkeypatch.setattr(spares, "start_idle", self.start)
        monkeypatch.setattr(spares, "kill_processes", self.killed.extend)

    def value(self, process: ProcessId, name: str) -> str:
        return {**QUICK, SETUP_HOOK: os.environ[SETUP_HOOK]}[name] if process == OURS else ""

    def start(self, environment: str, kept_s: int) -> None:
        self.asked.append((environment, kept_s))
        if self.refuses:
            raise OSError("the raylet does not answer")
        self.idle.append(OURS)


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(monkeypatch)


def test_one_is_asked_for_while_there_is_none_of_ours(node: Node) -> None:
    spare = Spare(own=False)
    node.idle.append(THEIRS)
    for _ in range(2):
        asyncio.run(spare.keep("{}"))
    assert node.asked == [("{}", spares.KEPT_S)]
    node.idle.remove(OURS)
    asyncio.run(spare.keep("{}"))
    assert len(node.asked) == 2


def test_in_a_ray_of_our_own_every_idle_process_is_ours(node: Node) -> None:
    node.idle.append(THEIRS)
    asyncio.run(Spare(own=True).keep("{}"))
    assert node.asked == []


@pytest.mark.parametrize(("again_s", "asked"), [(spares.AGAIN_S, 1), (0.0, 2)])
def test_a_node_that_refuses_is_asked_again_after_a_while(
    node: Node, monkeypatch: pytest.MonkeyPatch, again_s: float, asked: int
) -> None:
    monkeypatch.setattr(spares, "AGAIN_S", again_s)
    spare, node.refuses = Spare(own=False), True
    with pytest.raises(OSError, match="does not answer"):
        asyncio.run(spare.keep("{}"))
    node.refuses = False
    for _ in range(2):
        asyncio.run(spare.keep("{}"))
    assert len(node.asked) == asked


@pytest.mark.parametrize("own", [False, True])
def test_what_is_over_ends_its_own_in_a_ray_of_others_and_asks_for_none(node: Node, own: bool) -> None:
    spare = Spare(own=own)
    node.idle = [OURS, THEIRS]
    asyncio.run(spare.end())
    node.idle.clear()
    asyncio.run(spare.keep("{}"))
    assert (node.killed, node.asked) == ([] if own else [OURS], [])
