"""Records of fibers: listed in pages, deleted when asked and by themselves, accepted with or without a transaction."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from perdure.actors import exposed
from perdure.ledger import BadRequest, TooLarge
from tests.actors.fiber_cast import Jobs, Recovering
from tests.kit import ROOMY, Stage, address, play


@pytest.fixture(autouse=True)
def _nothing_happened_yet() -> None:
    for each in (Jobs.effects, Jobs.seen, Recovering.asked, Recovering.verdicts):
        each.clear()
    Recovering.nap_s = 0


async def listed(stage: Stage, **options: Any) -> list[str]:
    ids, _ = await stage.call(Jobs, "listed", options)
    return list(ids)


async def each_kind(stage: Stage) -> None:
    """One settled fiber of every status, in this order, a second apart, and one that goes on."""
    for name, status in (("a", "completed"), ("b", "error"), ("c", "aborted"), ("d", "interrupted")):
        await stage.call(Jobs, "start", "decides", status, {"fiber_id": name, "wait_for_completion": True})
        await asyncio.sleep(1)
    await stage.call(Jobs, "start", "forever", None, {"fiber_id": "e"})
    await asyncio.sleep(1)


@pytest.mark.shows(chat_recovery="C-1355", fibers="F38")
async def test_fibers_are_listed_by_status_and_name_the_newest_first(stage: Stage) -> None:
    await each_kind(stage)
    assert await listed(stage) == ["e", "d", "c", "b", "a"]
    assert await listed(stage, status="running") == ["e"]
    assert await listed(stage, status=["error", "interrupted"]) == ["d", "b"]
    assert await listed(stage, name="forever") == ["e"]
    assert await listed(stage, name="forever", status="completed") == []
    stage.kill_host_of(address(Jobs, "p"))
    assert await listed(stage, status="completed") == ["a"]


async def test_pages_follow_each_other_whatever_is_added_meanwhile(stage: Stage) -> None:
    assert await stage.call(Jobs, "start_many", 7, "quick") == 7
    assert await stage.call(Jobs, "start_many", 7, "quick") == 0, "all of them are known"
    whole, _ = await stage.call(Jobs, "listed", {})
    seen, cursor = await stage.call(Jobs, "listed", {"limit": 3})
    await stage.call(Jobs, "start", "quick", 8)
    while cursor:
        more, cursor = await stage.call(Jobs, "listed", {"limit": 3, "cursor": cursor})
        seen += more
    assert seen == whole
    assert len(seen) == 7


@pytest.mark.shows(chat_recovery="C-1356", fibers="F39")
async def test_a_deletion_spares_interrupted_and_open_fibers_unless_it_is_told_otherwise(stage: Stage) -> None:
    await each_kind(stage)
    told = await stage.call(Jobs, "inspect", "b")
    assert await stage.call(Jobs, "delete", {"settled_before": told["settled_at_ms"]}) == 1, "strictly before"
    assert await stage.call(Jobs, "delete", {"limit": 1}) == 1
    assert await listed(stage) == ["e", "d", "c"], "the longest settled first"
    assert await stage.call(Jobs, "delete", {}) == 1
    assert await stage.call(Jobs, "delete", {"status": "interrupted"}) == 1
    assert await listed(stage) == ["e"]
    assert (await stage.call(Jobs, "start", "decides", "error", {"fiber_id": "a"}))["accepted"], "its id is free"


@pytest.mark.shows(fibers="weakness-12")
def test_what_was_settled_long_ago_goes_by_itself() -> None:
    limits = replace(ROOMY, fibers_kept_max=20, fibers_kept_ms=600_000)

    async def story(stage: Stage) -> None:
        await stage.call(Jobs, "start", "decides", "interrupted", {"fiber_id": "kept", "wait_for_completion": True})
        await stage.call(Jobs, "start_many", 40, "quick")
        await stage.until(lambda: Jobs.effects["quick"] == 40)
        await asyncio.sleep(5)
        left = await listed(stage)
        assert 20 <= len(left) <= 20 + 11
        assert "kept" in left
        await asyncio.sleep(601)
        await stage.call(Jobs, "inspect", "kept")
        await asyncio.sleep(5)
        assert await listed(stage) == ["kept"], "and with age, when the agent next wakes"

    play(story, limits=limits)


@pytest.mark.shows(chat_recovery="C-1347", fibers="F30")
@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"fiber_id": ""}, "fiber_id"),
        ({"fiber_id": "  "}, "fiber_id"),
        ({"idempotency_key": " "}, "idempotency_key"),
        ({"idempotency_key": "k" * 257}, "idempotency_key"),
        ({"name": ""}, "name"),
        ({"metadata": [1]}, "metadata"),
        ({"retry": -1}, "retry"),
        ({"on_recovered": "nobody"}, "on_recovered"),
        ({"timeout_ms": -1}, "timeout_ms"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said_and_nothing_is_kept(
    stage: Stage, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        await stage.call(Jobs, "start", "quick", None, options)
    assert refused.value.field == field
    with pytest.raises(BadRequest) as refused:
        await stage.call(Jobs, "start", "no_such_method", None)
    assert refused.value.field == "fn_name"
    assert await listed(stage) == []


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (("listed", {"status": "done"}), "status"),
        (("listed", {"limit": 0}), "limit"),
        (("listed", {"cursor": "nonsense"}), "cursor"),
        (("delete", {"status": "running"}), "status"),
        (("delete", {"settled_before": "yesterday"}), "settled_before"),
        (("wait", "nobody"), "fiber_id"),
        (("inspect", ""), "fiber_id"),
    ],
)
async def test_bad_questions_name_the_field(stage: Stage, call: tuple[Any, ...], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        await stage.call(Jobs, *call)
    assert refused.value.field == field


class Dated(Jobs):
    """Says instants as datetimes, which do not travel in calls."""

    @exposed
    async def delete_before(self, moment: str) -> int:
        return self.delete_fibers(datetime.fromisoformat(moment))

    @exposed
    async def plan_at(self, moment: str) -> None:
        self.schedule(datetime.fromisoformat(moment), "quick")

    @exposed
    async def planned_from(self, moment: str) -> int:
        return len(self.schedules.list(between=(datetime.fromisoformat(moment), None)))


async def test_a_time_without_a_zone_stands_for_no_instant_wherever_it_is_given(stage: Stage) -> None:
    await stage.call(Dated, "start", "quick", 1, {"wait_for_completion": True})
    for method, field in (("delete_before", "settled_before"), ("plan_at", "when"), ("planned_from", "between")):
        with pytest.raises(BadRequest, match="has no time zone, so it stands for no instant") as refused:
            await stage.call(Dated, method, "2099-01-01T00:00:00")
        assert refused.value.field == field
    assert await stage.call(Dated, "planned_from", "2099-01-01T00:00:00+02:00") == 0
    assert await stage.call(Dated, "delete_before", "1999-01-01T00:00:00+02:00") == 0
    assert await stage.call(Dated, "delete_before", "2099-01-01T00:00:00+02:00") == 1


def test_what_is_too_large_is_refused() -> None:
    limits = replace(ROOMY, metadata_bytes_max=10, stash_bytes_max=10, input_bytes_max=100)

    async def story(stage: Stage) -> None:
        for given, options in (("x" * 200, {}), (None, {"metadata": {"a": "x" * 20}})):
            with pytest.raises(TooLarge):
                await stage.call(Jobs, "start", "quick", given, options)
        told = await stage.call(Jobs, "start", "quick", "x" * 20, {"wait_for_completion": True})
        assert told["status"] == "error"
        assert "data: has 28 bytes encoded; the limit is 10" in told["error"]

    play(story, limits=limits)


async def test_a_fiber_that_a_transaction_starts_begins_with_its_commit_or_never(stage: Stage) -> None:
    assert await stage.call(Jobs, "in_transaction", "f", fails=False) == "pending"
    assert (await stage.call(Jobs, "wait", "f"))["status"] == "completed"
    with pytest.raises(Exception, match="rolled back"):
        await stage.call(Jobs, "in_transaction", "g", fails=True)
    assert await stage.call(Jobs, "inspect", "g") is None
    assert Jobs.effects["quick"] == 1


async def test_nobody_can_wait_inside_a_transaction(stage: Stage) -> None:
    for what in ("start", "wait", "run"):
        with pytest.raises(BadRequest, match="transaction"):
            await stage.call(Jobs, "waits_inside", what)
    assert await listed(stage) == []


async def test_a_handler_that_is_done_again_starts_its_fiber_once(stage: Stage) -> None:
    await stage.call(Jobs, "follow", 2)
    await stage.until(lambda: Jobs.effects["quick"] > 0)
    await asyncio.sleep(60)
    assert Jobs.effects["handled"] == 3
    assert Jobs.effects["quick"] == 1
    assert len(await listed(stage)) == 1


async def test_a_run_that_is_entered_again_starts_its_fiber_once(stage: Stage) -> None:
    running = asyncio.create_task(stage.client.run(Jobs, "begin", run_id="r"))
    await stage.until(lambda: Jobs.effects["quick"] == 1)
    stage.kill_host_of(address(Jobs, "r"))
    assert (await running).output == 2
    assert Jobs.effects["quick"] == 1


async def test_a_copy_of_an_agent_has_none_of_its_fibers(stage: Stage) -> None:
    await each_kind(stage)
    await stage.call(Jobs, "copy_to", "q")
    assert await stage.call(Jobs, "listed", {}, name="q") == [[], None]
    assert await stage.call(Jobs, "kept_state", name="q") == "mine"
