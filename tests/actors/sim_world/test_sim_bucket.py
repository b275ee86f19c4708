"""The simulated bucket: the real store over it, late requests, deaths between two requests, and checks that can fail."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, OutcomeUnknown, exposed
from perdure.actors import Client, KillPoint
from perdure.actors.ports import BUCKET_POINTS
from perdure.actors.sim_world.simulation import Overdue
from perdure.actors.sim_world.weather import Span, Weather
from perdure.ledger.slots import JournalLife, Procedure, slot_key
from perdure.ledger.store.bucket_store import BucketStore
from perdure.scenarios.testing import bucket_ledger
from perdure.scenarios.testing.laboratory import QUICK, Laboratory, Violation

ROOTED = replace(QUICK, checkpoint_facts=1, checkpoint_idle_ms=100)
CALLS = 6


class Tally(Agent):
    """Counts its calls in a table."""

    @exposed
    def count(self) -> int:
        self.sql("CREATE TABLE IF NOT EXISTS counted (n INTEGER)")
        self.sql("INSERT INTO counted SELECT count(*) + 1 FROM counted")
        return int(self.sql("SELECT max(n) FROM counted")[0][0])


@pytest.fixture(autouse=True)
def _roots_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_ledger, "ROOTS_S", (0.0,))
    monkeypatch.setattr(bucket_ledger, "KEPT_S", (0.0,))


async def counted(client: Client, calls: int = CALLS, pause_s: float = 2.0) -> list[int]:
    """What a tally answers, one call after the other; each waits until it is answered."""
    told: list[int] = []
    while len(told) < calls:
        with suppress(OutcomeUnknown):
            told.append(await client.agent(Tally, "a").count())
        await asyncio.sleep(pause_s)
    assert told == sorted(set(told)), "an answer was forgotten"
    return told


@pytest.mark.parametrize("point", BUCKET_POINTS)
def test_whoever_dies_around_a_request_what_was_answered_is_in_the_bucket_alone(
    tmp_path: Path, point: KillPoint
) -> None:
    visits = Counter[KillPoint]()

    def strikes(_process: str, at: KillPoint, _detail: str) -> bool:
        visits[at] += 1
        return at is point and visits[at] in (1, 2, 4)

    weather = Weather(cache_lost=1.0)
    with Laboratory(1, weather, ROOTED, carried=tmp_path, kill_when=strikes) as laboratory:
        laboratory.play(counted)
        laboratory.heal()
        laboratory.settle()
        assert laboratory.simulation.kills["supervisor"] == 3


def test_what_arrives_after_its_sender_has_died_and_the_next_life_has_begun_changes_nothing(tmp_path: Path) -> None:
    weather = Weather(bucket_doubled=1.0, bucket_late_ms=Span(3_000, 20_000), cache_lost=0.5)

    async def story(client: Client) -> None:
        for _ in range(3):
            await counted(client, 3)
            laboratory.simulation.kill("supervisor")
        await counted(client, 3)
        await asyncio.sleep(30)
        await counted(client, 1)

    with Laboratory(1, weather, ROOTED, carried=tmp_path) as laboratory:
        laboratory.play(story)
        told = [(each.process, each.what) for each in laboratory.simulation.trace]
        later = told[max(at for at, each in enumerate(told) if each == ("supervisor", "starts")) :]
        assert any(who == "bucket" and "create journal" in what for who, what in later)
        laboratory.heal()
        laboratory.settle()


def test_a_store_that_overwrites_is_refused_before_anything_begins(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await client.agent(Tally, "a").count()

    with Laboratory(1, carried=tmp_path) as laboratory:
        laboratory.bucket.objects.overwrites = True
        with pytest.raises(Overdue):
            laboratory.play(story, timeout_ms=20_000)
        causes = {str(each.error) for each in laboratory.simulation.crashes}
        assert all("it overwrites an object that is to be created once" in each for each in causes)
        assert causes
        assert not laboratory.bucket.objects.held, "so the next opening is the first one too"


def test_a_supervisor_waits_in_virtual_time_and_other_threads_go_on_meanwhile(tmp_path: Path) -> None:
    async def story(client: Client) -> float:
        await client.agent(Tally, "a").count()
        laboratory.simulation.change_weather(Weather(bucket_stands=1.0, bucket_stands_ms=Span(9_000, 9_000)))
        begun_s = asyncio.get_running_loop().time()
        under_way = asyncio.ensure_future(client.agent(Tally, "a").count())
        await asyncio.sleep(1)
        assert (await client.ask("audit"))["balanced"]
        assert not under_way.done()
        laboratory.simulation.heal()
        assert await under_way == 2
        return asyncio.get_running_loop().time() - begun_s

    with Laboratory(1, carried=tmp_path) as laboratory:
        assert laboratory.play(story) > 9


# ---------------------------------------------------------------- the checks can fail


def careless(life: JournalLife, body: bytes, pieces: Sequence[bytes] = ()) -> Procedure[None]:
    """Acknowledges a commit that was not sent."""
    life._take(life._entry(is_fence=False, pieces=tuple(pieces), body=body), bytes(16))  # noqa: SLF001
    yield from ()


def test_a_store_that_acknowledges_what_is_not_in_the_bucket_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JournalLife, "append", careless)
    with Laboratory(1, carried=tmp_path) as laboratory, pytest.raises(Violation, match="is not in the bucket"):
        laboratory.play(counted)


def test_a_life_that_begins_without_what_was_acknowledged_is_found_out(tmp_path: Path) -> None:
    async def story(client: Client) -> None:
        await counted(client, 2)
        laboratory.simulation.kill("supervisor")
        del laboratory.bucket.objects.held[slot_key(laboratory.bucket.reached)]
        await counted(client, 1)

    with (
        Laboratory(1, Weather(cache_lost=1.0), carried=tmp_path) as laboratory,
        pytest.raises(Violation, match="a life has begun in slot"),
    ):
        laboratory.play(story)


@pytest.fixture
def _storages_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    def storage(store: BucketStore, agent_id: str) -> Any:
        image = read(store, agent_id)
        return image if image is None else image._replace(files={})

    read = BucketStore.storage
    monkeypatch.setattr(BucketStore, "storage", storage)


@pytest.mark.usefixtures("_storages_are_forgotten")
def test_a_storage_that_is_another_one_in_the_bucket_is_found_out(tmp_path: Path) -> None:
    with Laboratory(1, carried=tmp_path) as laboratory:
        laboratory.play(lambda client: counted(client, 1))
        with pytest.raises(Violation, match=r"the storage of a@.* is another one than was acknowledged"):
            laboratory.settle()
