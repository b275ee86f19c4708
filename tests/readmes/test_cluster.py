"""What the page on clusters says: its examples lose their hosts with their disks, and its numbers are those of the code.

What it says of real nodes is shown by `tests/cluster` (`test_machines`, `test_bucket_ray`, `test_nodes_that_leave`, `test_two_nodes`), of
buckets by `tests/ledger/test_bucket_weather.py`, of commands by `tests/scenarios/test_bucket_commands.py`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Agent, RunContext
from perdure.actors import Client
from perdure.actors.chat.tools import function_tool
from perdure.actors.life.host_options import Placement
from perdure.actors.sim_world.weather import Span, Weather
from perdure.ledger import LAG_MAX_MS, UNREACHABLE_S
from perdure.ledger.store.bucket import SIGNED
from perdure.ledger.store.bucket_store import BucketStore
from perdure.ledger.succession import KNOCK_S
from perdure.policies import Limits
from perdure.policies.nodes import MOVE_MS
from perdure.scenarios.testing.laboratory import Laboratory
from tests.readmes.pages import CLUSTER, example, modules
from tests.tidy import ROOT

COMMIT_MS = 1_000
OUTAGE_MS = 100_000


class Slow(Agent):
    """Works for a while, and says in which attempt."""

    async def run(self, input: float, run: RunContext) -> int:
        await asyncio.sleep(input)
        return run.attempt


@pytest.fixture(scope="module", autouse=True)
def _modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with modules(tmp_path_factory.mktemp("readmes")):
        yield


@pytest.fixture
def laboratory(tmp_path: Path) -> Iterator[Laboratory]:
    """A world whose hosts share nothing, and die with their disks."""
    with Laboratory(1, carried=tmp_path) as made:
        yield made


def commits_take(laboratory: Laboratory, ms: int) -> None:
    laboratory.simulation.change_weather(Weather(commit_slow=1, commit_slow_ms=Span(ms, ms)))


def commits_of(laboratory: Laboratory) -> list[int]:
    """Each commit from now on adds an element."""
    counted, append = list[int](), laboratory.store.append

    def appended(*given: Any) -> None:
        counted.append(1)
        append(*given)

    laboratory.store.append = appended  # type: ignore[method-assign]
    return counted


def test_what_the_till_has_answered_is_there_although_every_machine_died(laboratory: Laboratory) -> None:
    till = example("till").Till

    async def story(client: Client) -> None:
        assert await client.agent(till, "home").pay(500) == 500
        for host_id in list(laboratory.hosts):
            laboratory.simulation.kill(host_id)
        await asyncio.sleep(30)  # what becomes of a call that was handed to one of them is unknown
        laboratory.simulation.kill("supervisor")
        assert await client.agent(till, "home").pay(250) == 750

    laboratory.play(story)
    laboratory.settle()


def test_the_trainer_gets_a_host_of_what_it_asks_for_and_a_tool_a_part_of_a_gpu(laboratory: Laboratory) -> None:
    train = example("train")

    async def story(client: Client) -> None:
        assert (await client.run(train.Trainer, "corpus")).output == 6
        assert asked in [host.spec for host in laboratory.supervisors[-1].view.hosts.values()]

    amounts = [["GPU", 1.0], ["accelerator_type:A100", 0.001], ["memory", 16_000_000_000]]
    asked = [4, amounts, "", False, [["ray.io/market-type", "!spot"], ["zone", "in(a, b)"]]]
    laboratory.play(story)
    assert function_tool(train.draw).placement == Placement(num_gpus=0.5)


def test_an_awaited_run_waits_for_two_commits_one_after_the_other(laboratory: Laboratory) -> None:
    commits = commits_of(laboratory)

    async def story(client: Client) -> None:
        await client.run(Slow, 0.0, run_id="warm")
        commits_take(laboratory, COMMIT_MS)
        await asyncio.sleep(5)
        begun_s, before = asyncio.get_running_loop().time(), len(commits)
        await client.run(Slow, 0.0, run_id="r")
        assert len(commits) - before == 2
        assert 2 * COMMIT_MS <= (asyncio.get_running_loop().time() - begun_s) * 1000 < 2.1 * COMMIT_MS
        laboratory.simulation.heal()

    laboratory.play(story)


def test_agents_that_do_nothing_commit_nothing(laboratory: Laboratory) -> None:
    commits = commits_of(laboratory)

    async def story(client: Client) -> None:
        await client.agent(example("till").Till, "home").pay(1)
        await asyncio.sleep(60)
        before = len(commits)
        await asyncio.sleep(3_600)
        assert len(commits) == before

    laboratory.play(story, timeout_ms=10 * 3_600_000)


def test_while_the_bucket_is_silent_nothing_that_is_at_work_ends(laboratory: Laboratory) -> None:
    async def story(client: Client) -> None:
        run = asyncio.ensure_future(client.run(Slow, 200.0, run_id="long"))
        await asyncio.sleep(5)
        commits_take(laboratory, OUTAGE_MS)
        other = asyncio.ensure_future(client.run(Slow, 0.0, run_id="short"))
        await asyncio.sleep(OUTAGE_MS / 1000 + 10)
        laboratory.simulation.heal()
        assert [(await other).output, (await run).output] == [1, 1], "each in its first attempt"
        assert (await client.ask("ps", 0))["epoch"] == 1

    laboratory.play(story)
    laboratory.settle()


def number(pattern: str, text: str = CLUSTER.prose) -> float:
    found = re.search(pattern, text)
    assert found is not None, pattern
    return float(found[1])


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert number(r"not answered for (\d+) s") == UNREACHABLE_S
    assert number(r"after (\d+) MB of commits") == BucketStore.root_bytes >> 20
    assert (", 200,000 facts," in CLUSTER.prose, BucketStore.root_facts) == (True, 200_000)
    assert ("or ten minutes" in CLUSTER.prose, BucketStore.root_s) == (True, 600)
    assert number(r"at work (\d+) s before the end") * 1000 == MOVE_MS
    assert ("empty for a minute" in CLUSTER.prose, Limits().host_idle_ms) == (True, 60_000)
    assert number(r"is followed after (\d+) s") == KNOCK_S
    assert ("for an hour" in CLUSTER.prose, SIGNED) == (True, timedelta(hours=1))
    assert ("last day is kept" in CLUSTER.prose, BucketStore.keep_s) == (True, 86_400)
    assert number(r"`lag_max_ms` \((\d+) s\)") * 1_000 == LAG_MAX_MS


def test_a_dead_machine_is_missed_as_soon_as_the_page_says() -> None:
    checks = {
        name: number(rf"RAY_health_check_{name}=(\d+)", (ROOT / "ray_cluster.yaml").read_text("utf-8"))
        for name in ("period_ms", "timeout_ms", "failure_threshold")
    }
    assert "within two seconds" in CLUSTER.prose
    assert checks["period_ms"] * checks["failure_threshold"] + checks["timeout_ms"] <= 2_000


def test_the_price_of_a_month_is_calculated() -> None:
    answer_ms, most, price, dollars = (
        number(each)
        for each in (r"in (\d+) ms gets", r"at most (\d+) a second", r"\$(\d+) a million", r"some \$(\d+) for a month")
    )
    assert most == 1_000 // answer_ms
    assert dollars == pytest.approx(most * 30.4 * 86_400 / 1e6 * price, rel=0.01)
    assert 1_000 / Limits().linger_ms == 10
    assert number(r"ten a second are \$(\d+)") == pytest.approx(10 * 30.4 * 86_400 / 1e6 * price, rel=0.01)
