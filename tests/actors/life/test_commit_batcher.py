"""Writes of several agents that are due in one turn of a host's loop become durable together (`actors.life.host_services`)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel

from perdure.actors import ChatAgent
from perdure.actors.life.host_services import CommitBatcher
from perdure.ledger import StorageError
from perdure.ledger.storage.agent_storages import AgentStorages, FileDisk, MemoryDisk
from perdure.ledger.storage.shared_log import SharedLog
from tests.kit import ROOMY, Laboratory

TICKS = 20


def at_once(job: Callable[[], None]) -> None:
    job()


def disk_in(folder: Path) -> FileDisk:
    return FileDisk(folder, SharedLog(folder, boot="one", beside=at_once))


@pytest.fixture
def synchronised(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds of the files that were synchronised one by one, or for several agents."""
    seen: list[str] = []
    true = os.fdatasync

    def recorded(file: int) -> None:
        seen.append(Path(f"/proc/self/fd/{file}").readlink().suffix)
        true(file)

    monkeypatch.setattr(os, "fdatasync", recorded)
    return seen


def test_what_is_due_in_one_turn_is_written_once_and_what_was_cancelled_is_not(
    tmp_path: Path, synchronised: list[str]
) -> None:
    disk = disk_in(tmp_path)
    agent_storages = AgentStorages(disk)
    storages = [agent_storages.open(f"{name}@m:T", 1) for name in "abcd"]
    told: list[str] = []

    def write(number: int) -> None:
        storage = storages[number]
        with storage.transaction() as transaction:
            storage.state["n"] = 1
            transaction.then(lambda: told.append(storage.agent_id))

    async def turn() -> None:
        writes = CommitBatcher(disk)
        for storage in storages:
            storage.state["n"] = 0
        synchronised.clear()
        due = [writes.soon(lambda n=n: write(n), pytest.fail, copy_context(), 1) for n in range(4)]  # type: ignore[misc]
        due[2].cancel()
        assert not told
        await asyncio.sleep(0)

    asyncio.run(turn())
    assert synchronised == [".shared"]
    assert [storage.state["n"] for storage in storages] == [1, 1, 0, 1]
    assert told == [storages[n].agent_id for n in (0, 1, 3)]
    agent_storages.close()
    disk.close()


def test_a_write_comes_after_so_many_turns_of_the_loop() -> None:
    async def turns() -> list[list[str]]:
        writes, told = CommitBatcher(MemoryDisk()), list[str]()
        for name, count in (("late", 3), ("soon", 1), ("late too", 3)):
            writes.soon(partial(told.append, name), pytest.fail, copy_context(), count)
        seen = []
        for _ in range(4):
            await asyncio.sleep(0)
            seen.append([*told])
        return seen

    everything = ["soon", "late", "late too"]
    assert asyncio.run(turns()) == [["soon"], ["soon"], everything, everything]


def test_a_write_that_fails_is_told_and_the_others_are_done() -> None:
    told: list[str] = []

    def refuse() -> None:
        raise StorageError("a@m:T", "it is broken")

    async def turn() -> None:
        writes = CommitBatcher(MemoryDisk())
        writes.soon(refuse, lambda problem: told.append(str(problem)), copy_context(), 1)
        writes.soon(lambda: told.append("written"), pytest.fail, copy_context(), 1)
        await asyncio.sleep(0)

    asyncio.run(turn())
    assert told == ["storage of a@m:T: it is broken", "written"]


async def _on_the_second(_messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
    for _ in range(TICKS):
        await asyncio.sleep(1 - asyncio.get_running_loop().time() % 1)
        yield "tick "


class Clock(ChatAgent):
    """Says a word each second, as every other clock does."""

    model = FunctionModel(stream_function=_on_the_second)


class Ear:
    """Hears every event, so that each is made durable at once."""

    def on_event(self, event: dict[str, object]) -> None:
        """Hear it."""


def test_the_answers_of_several_chats_on_a_host_share_their_writes(tmp_path: Path, synchronised: list[str]) -> None:
    with Laboratory(1, limits=replace(ROOMY, hosts_max=1, hosts_warm=1)) as laboratory:
        laboratory.disk = disk_in(tmp_path)

        async def main(client: object) -> list[str]:
            chats = [client.agent(Clock, name).chat("Go.", Ear()) for name in "abcde"]  # type: ignore[attr-defined]
            return [result.text for result in await asyncio.gather(*chats)]

        texts = laboratory.play(main)
        laboratory.rest()
    assert texts == ["tick " * TICKS] * 5
    assert synchronised.count(".shared") >= TICKS - 2
    assert synchronised.count(".db") < 2 * TICKS, "five chats alone would need five for each word"
