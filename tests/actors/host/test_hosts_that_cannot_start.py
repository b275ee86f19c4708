"""Hosts that cannot start: whoever waits is told why within seconds, nothing that was accepted is lost, and work goes on when they can."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, PoolSpec, exposed
from perdure.ledger import HostUnavailable, NoSuchNode
from tests.actors.cast import Sleeper
from tests.kit import ROOMY, Stage, address, play, staged

BROKEN = "ImportError: libfoo.so.1: cannot open shared object file"
LACK = "no node has 64 GPU (the most that one has: 0 GPU)"
SECONDS = 12


class Twofold(Agent):
    """Wants nothing special."""

    async def run(self, input: int) -> int:
        return input * 2


class Remote(Agent):
    """Wants what another pool has."""

    stands_alone = True
    resources = {"far": 1.0}  # noqa: RUF012

    async def run(self, input: int) -> int:
        if input > 1:
            await asyncio.sleep(input / 1000)
        return input

    @exposed
    def greet(self) -> str:
        return "hello"


class Wanting(Agent):
    """Waits for a `Remote`."""

    async def run(self, input: str) -> Any:
        return str((await self.run_agent_tool(Remote, 1, run_id=input)).error)


def breaking(stage: Stage, words: str = BROKEN, *, resource: str = "") -> None:
    """Hosts fail as they start: all of them, or those of a pool."""
    stage.simulation.cluster.broken = lambda spec: words if not resource or _has(spec, resource) else ""


def mending(stage: Stage) -> None:
    stage.simulation.cluster.broken = lambda _spec: ""
    stage.simulation.cluster.lack = lambda _spec: ""


def _has(spec: PoolSpec, resource: str) -> bool:
    return resource in dict(spec.resources)


def lacking(stage: Stage, resource: str) -> None:
    stage.simulation.cluster.lack = lambda spec: LACK if _has(spec, resource) else ""


async def overview(stage: Stage) -> list[str]:
    return [each["told"] for each in (await stage.client.ask("ps", 0))["unstartable"]]


async def test_whoever_waits_is_told_the_cause_within_seconds_and_the_run_goes_on_when_hosts_come_up(
    stage: Stage,
) -> None:
    breaking(stage)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(HostUnavailable, match=f"no host comes up, after 4 tries: {BROKEN}.*Run r is kept"):
            await stage.client.run(Twofold, 2, run_id="r")
    assert stage.status("r") == "starting"
    assert BROKEN in " ".join(await stage.client.ask("explain", "r"))
    assert BROKEN in (await overview(stage))[0]
    mending(stage)
    assert (await stage.client.run(Twofold, 2, run_id="r")).output == 4
    assert not await overview(stage)
    assert stage.view.runs["r"].attempt == 1


async def test_every_one_who_waits_for_a_run_is_told(stage: Stage) -> None:
    breaking(stage)
    asked = [stage.client.run(Twofold, 2, run_id="r") for _ in range(3)]
    handle = await stage.client.start(Twofold, 3, run_id="s")
    found = await asyncio.gather(*asked, handle.result(), return_exceptions=True)
    assert [type(each) for each in found] == [HostUnavailable] * 4


async def test_a_call_that_no_host_can_take_is_refused_and_never_made(stage: Stage) -> None:
    breaking(stage)
    async with asyncio.timeout(SECONDS):
        with pytest.raises(HostUnavailable, match="The call was not made"):
            await stage.client.agent(Remote, "one").greet()
    mending(stage)
    await asyncio.sleep(60)
    assert address(Remote, "one") not in stage.view.agents
    assert await stage.client.agent(Remote, "one").greet() == "hello"


async def test_who_comes_after_the_cause_was_mended_does_not_wait_out_the_long_pause(stage: Stage) -> None:
    breaking(stage)
    with pytest.raises(HostUnavailable):
        await stage.client.run(Twofold, 2, run_id="r")
    await asyncio.sleep(600)
    mending(stage)
    async with asyncio.timeout(SECONDS):
        assert (await stage.client.run(Twofold, 2, run_id="r")).output == 4


def test_hosts_that_fail_are_tried_ever_more_seldom_and_each_cause_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(stage: Stage) -> None:
        breaking(stage)
        await stage.client.start(Twofold, 2, run_id="r")
        await asyncio.sleep(600)
        asked_for = [each for each in stage.simulation.trace if each.what == "is asked for"]
        assert 4 < len(asked_for) < 50
        assert stage.status("r") == "starting"
        breaking(stage, "another cause")
        await asyncio.sleep(120)

    with caplog.at_level(logging.WARNING, "perdure.supervisor"):
        play(story)
    warned = [each.getMessage() for each in caplog.records if "no host comes up" in each.getMessage()]
    assert [BROKEN in each for each in warned] == [True, False]


async def test_a_run_whose_class_alone_cannot_be_hosted_ends_as_an_error_after_its_attempts(stage: Stage) -> None:
    assert (await stage.client.run(Twofold, 1)).output == 2
    breaking(stage, resource="far")
    async with asyncio.timeout(2 * SECONDS):
        result = await stage.client.run(Remote, 1, run_id="r")
    assert result.status == "error"
    assert "no host (1 far) comes up, after " in str(result.error)
    assert BROKEN in str(result.error)
    assert (await stage.client.run(Twofold, 1)).output == 2, "others go on"
    mending(stage)
    await stage.client.ask("retry", "r")
    assert (await stage.ended("r")).status == "completed"


async def test_an_agent_that_waits_for_a_run_which_cannot_be_hosted_is_told_how_it_failed(stage: Stage) -> None:
    breaking(stage, resource="far")
    result = await stage.client.run(Wanting, "child", run_id="p")
    assert BROKEN in str(result.output)


async def test_what_no_node_has_is_told_at_once_as_what_it_is_and_fails_no_run(stage: Stage) -> None:
    assert (await stage.client.run(Twofold, 1)).output == 2
    lacking(stage, "far")
    async with asyncio.timeout(3):
        with pytest.raises(NoSuchNode, match="can be had: no node has 64 GPU"):
            await stage.client.run(Remote, 1, run_id="r")
    assert "It begins when a node has it" in " ".join(await stage.client.ask("explain", "r"))
    with pytest.raises(NoSuchNode):
        await stage.client.agent(Remote, "one").greet()
    await asyncio.sleep(600)
    assert stage.status("r") == "starting"
    mending(stage)
    assert (await stage.client.run(Remote, 1, run_id="r")).output == 1


async def test_an_agent_that_waits_for_what_no_node_has_gets_the_error(stage: Stage) -> None:
    lacking(stage, "far")
    async with asyncio.timeout(SECONDS):
        result = await stage.client.run(Wanting, "child", run_id="p")
    assert result.status == "error"
    assert "no node has 64 GPU" in str(result.error)


@staged(limits=replace(ROOMY, hosts_max=6, hosts_warm=1))
async def test_where_some_hosts_are_up_they_take_whoever_waits_if_no_more_come_up(stage: Stage) -> None:
    await asyncio.gather(*(stage.client.run(Twofold, number) for number in range(3)))
    breaking(stage)
    runs = [stage.client.run(Sleeper, 1_000, run_id=f"r{number}") for number in range(20)]
    async with asyncio.timeout(60):
        assert [each.status for each in await asyncio.gather(*runs)] == ["completed"] * 20


@staged(limits=replace(ROOMY, hosts_warm=1, recovery_deadline_ms=20000, reattach_no_progress_ms=10**9))
async def test_the_recovery_deadline_comes_though_the_parent_was_lost_too(stage: Stage) -> None:
    """A child needs what another node has; that node goes, and then the parent's host dies."""
    task = asyncio.create_task(stage.client.run(Hoping, 3_600_000, run_id="p"))
    await stage.until(lambda: stage.status("c") == "running")
    lacking(stage, "far")
    stage.kill_host_of(address(Remote, "c"))
    await asyncio.sleep(5)
    stage.kill_host_of(address(Hoping, "p"))
    await stage.until(lambda: bool(stage.view.runs["c"].reattached_at_ms))
    told = await stage.client.ask("inspect", "c")
    assert (told["status"], told["host"], told["waits_for_host"]) == ("starting", "", True)
    assert "its host died" in told["lost_by"]
    outcome = (await task).output
    assert outcome == ["interrupted", "recovery-deadline"]


class Hoping(Agent):
    """Waits for a `Remote` that works for long."""

    async def run(self, input: int) -> list[str]:
        result = await self.run_agent_tool(Remote, input, run_id="c")
        return [result.status, str(getattr(result, "reason", ""))]
