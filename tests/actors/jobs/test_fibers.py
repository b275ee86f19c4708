"""Managed fibers: accepted once, inspected, awaited, cancelled."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from perdure.actors import FiberInspection
from perdure.ledger import BadRequest, ConflictingRequest
from tests.actors.fiber_cast import Jobs
from tests.kit import Stage


@pytest.fixture(autouse=True)
def _nothing_happened_yet() -> None:
    Jobs.effects.clear()
    Jobs.seen.clear()


async def start(stage: Stage, fn_name: str, input: Any = None, **options: Any) -> dict[str, Any]:
    told: dict[str, Any] = await stage.call(Jobs, "start", fn_name, input, options)
    return told


@pytest.mark.shows(chat_recovery="C-1344", fibers="F27")
async def test_a_fiber_is_accepted_at_once_and_its_end_is_kept(stage: Stage) -> None:
    told = await start(stage, "quick", 7, fiber_id="f", idempotency_key="k", metadata={"for": "you"})
    assert (told["accepted"], told["status"], told["attempt"]) == (True, "pending", 0)
    ended = await stage.call(Jobs, "wait", "f")
    assert (ended["status"], ended["attempt"], ended["snapshot"]) == ("completed", 1, {"input": 7})
    assert (ended["idempotency_key"], ended["metadata"]) == ("k", {"for": "you"})
    assert ended["created_at_ms"] <= ended["started_at_ms"] <= ended["settled_at_ms"]
    assert await stage.call(Jobs, "inspect_key", "k") == ended


@pytest.mark.shows(chat_recovery="C-1345 C-1346 C-1351", fibers="F28 F29 F34")
@pytest.mark.parametrize("identity", [{"fiber_id": "f"}, {"idempotency_key": "k"}])
async def test_a_duplicate_joins_and_nothing_is_done_twice(stage: Stage, identity: dict[str, Any]) -> None:
    first = await start(stage, "slow", **identity)
    again = await start(stage, "slow", **identity)
    assert (again["accepted"], again["fiber_id"]) == (False, first["fiber_id"])
    both = await asyncio.gather(*(start(stage, "slow", **identity, wait_for_completion=True) for _ in range(2)))
    assert [(each["status"], each["accepted"]) for each in both] == [("completed", False)] * 2
    assert Jobs.effects["slow 0"] == 1


@pytest.mark.shows(fibers="weakness-13")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": "other"}, "name"),
        ({"fn_name": "slow", "name": "quick"}, "fn_name"),
        ({"input": 2}, "input"),
        ({"fiber_id": "g"}, "fiber_id"),
        ({"idempotency_key": "j"}, "idempotency_key"),
    ],
)
async def test_the_same_identity_with_other_content_is_a_conflict(
    stage: Stage, change: dict[str, Any], field: str
) -> None:
    await start(stage, "quick", 1, fiber_id="f", idempotency_key="k")
    asked = {"fn_name": "quick", "input": 1, "fiber_id": "f", "idempotency_key": "k", **change}
    with pytest.raises(ConflictingRequest) as refused:
        await start(stage, asked.pop("fn_name"), asked.pop("input"), **asked)
    assert refused.value.field == field


@pytest.mark.shows(chat_recovery="C-1348 C-1350 C-1353", fibers="F31 F33 F36")
async def test_who_waits_is_told_of_a_failure(stage: Stage) -> None:
    told = await start(stage, "failing", "no use", wait_for_completion=True)
    assert (told["accepted"], told["status"], told["error"]) == (True, "error", "ValueError: no use")


@pytest.mark.shows(fibers="weakness-11")
async def test_a_wait_may_have_a_limit_and_the_fiber_goes_on(stage: Stage) -> None:
    told = await start(stage, "slow", fiber_id="f", wait_for_completion=True, timeout_ms=1_500)
    assert (told["status"], told["snapshot"]) == ("running", {"done": 1})
    assert (await stage.call(Jobs, "wait", "f"))["status"] == "completed"


@pytest.mark.shows(chat_recovery="C-1354", fibers="F37 weakness-17")
async def test_a_cancel_is_durable_at_once_and_stops_async_code(stage: Stage) -> None:
    await start(stage, "forever", fiber_id="f")
    waiting = asyncio.ensure_future(stage.call(Jobs, "wait", "f"))
    await asyncio.sleep(1)
    assert await stage.call(Jobs, "cancel", "f", "enough")
    told = await waiting
    assert (told["status"], told["error"], told["snapshot"]) == ("aborted", "enough", "here")
    assert not await stage.call(Jobs, "cancel", "f", "again")
    await asyncio.sleep(1_100)
    assert Jobs.effects["forever ended"] == 0
    assert (await stage.call(Jobs, "inspect", "f"))["status"] == "aborted"


@pytest.mark.shows(chat_recovery="C-1352", fibers="F35 weakness-14")
async def test_a_body_that_goes_on_after_a_cancel_changes_nothing_any_more(stage: Stage) -> None:
    await start(stage, "stubborn", fiber_id="f", idempotency_key="k")
    await asyncio.sleep(1)
    waiting = asyncio.ensure_future(stage.call(Jobs, "wait", "f"))
    assert await stage.call(Jobs, "cancel_key", "k")
    assert (await waiting)["status"] == "aborted", "who waits does not wait for the body"
    await asyncio.sleep(10)
    told = await stage.call(Jobs, "inspect", "f")
    assert (told["status"], told["snapshot"], told["error"]) == ("aborted", "before", "by key")
    assert Jobs.seen == [("cancelled", True), ("stashed", False)]
    assert Jobs.effects["late step"] == 0


async def test_a_body_s_input_is_typed_and_so_is_an_inspection(stage: Stage) -> None:
    told = await stage.call(Jobs, "double", {"n": 4}, math.inf)
    assert isinstance(told, FiberInspection)
    assert (told.ok, told.snapshot, told.is_settled) == (True, 8, True)
    assert not (await stage.call(Jobs, "double", {"n": 5}, 0)).is_settled
    with pytest.raises(BadRequest) as refused:
        await stage.call(Jobs, "double", {"n": "many"}, 0)
    assert refused.value.field == "input"
