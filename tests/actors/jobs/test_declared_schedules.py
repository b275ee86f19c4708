"""What `on_start` declares is the present wish: an author who edits a time there and starts the program again has the new one only."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from perdure.actors.events.observability import subscribe
from perdure.ledger import ConflictingRequest
from tests.actors.planners import Declared, Plain, do, notes
from tests.kit import Stage, address

HOME = address(Declared, "p")
Wish = tuple[str, list[Any], dict[str, Any]]


@pytest.fixture(autouse=True)
def _nothing_is_declared() -> Iterator[None]:
    yield
    Declared.wish.clear()
    Declared.trouble.clear()


def every(seconds: float, callback: str = "note", payload: object = None, **told: Any) -> Wish:
    return "schedule_every", [seconds, callback, payload], told


def at(when: Any, callback: str = "note", payload: object = None, **told: Any) -> Wish:
    return "schedule", [when, callback, payload], told


async def start_again(stage: Stage, *wish: Wish) -> list[dict[str, Any]]:
    """The schedules of the agent after its next start, with this code."""
    Declared.wish[:] = wish
    if stage.host_of(HOME):
        stage.kill_host_of(HOME)
        await asyncio.sleep(3)
    return list(await do(stage, "schedules.list", kind=Declared))


def times(rows: list[dict[str, Any]]) -> list[object]:
    return [row["cron"] or row["interval_ms"] for row in rows]


async def test_a_time_that_is_edited_in_on_start_takes_the_place_of_the_old_one(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    leave = subscribe("schedule", lambda event: heard.append(event.type))
    cron, other = at("0 8 * * *", "note", "daily"), at("0 8 * * *", "note", "other")
    assert times(await start_again(stage, cron, every(2), other)) == ["0 8 * * *", 2_000, "0 8 * * *"]
    edited = await start_again(stage, at("0 9 * * *", "note", "daily"), every(5), other)
    assert times(edited) == ["0 8 * * *", "0 9 * * *", 5_000]
    assert edited[0]["payload"] == "other"
    assert heard.count("schedule:cancel") == 2
    assert f"agent {HOME}: schedule " in caplog.text
    assert "('0 8 * * *': note) is not declared in on_start any more, and is cancelled" in caplog.text
    assert "('0 9 * * *': note)" in caplog.text
    leave()


async def test_a_sync_on_start_declares_too_and_what_it_has_a_sub_agent_plan_is_no_declaration(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert times(await do(stage, "schedules.list", kind=Plain)) == [200_000]
    monkeypatch.setattr(Plain, "interval_s", 300.0)
    stage.kill_host_of(address(Plain, "p"))
    await asyncio.sleep(3)
    assert times(await do(stage, "schedules.list", kind=Plain)) == [300_000]
    assert times(await stage.call(Plain, "do_below", name="p")) == [200_000, 300_000]


async def test_what_on_start_does_not_declare_any_more_goes_on_and_is_told_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    """Code that asks whether there is one already declares it in its first life only."""
    first = await start_again(stage, every(200), every(300, key="k"))
    for _ in range(2):
        assert await start_again(stage) == first
    assert caplog.text.count("is not declared in on_start any more, and goes on") == 2
    assert f"cancel it (`schedules.cancel('{first[0]['schedule_id']}')` of {HOME})" in caplog.text
    assert times(await start_again(stage, every(200))) == [200_000, 300_000]
    assert times(await start_again(stage, every(100))) == [300_000, 100_000]


async def test_what_on_start_declared_is_cancelled_when_its_callback_is_gone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await start_again(stage, every(200, "slow"), every(300, "slow", key="k"))
    monkeypatch.delattr(Declared.__mro__[1], "slow")
    assert times(await start_again(stage, every(200, "note"))) == [300_000, 200_000]


async def test_what_others_made_is_left_alone_whatever_on_start_declares(stage: Stage) -> None:
    await start_again(stage, ("later", [], {}))
    await asyncio.sleep(3)
    await do(stage, "schedule_every", 200, "note", kind=Declared)
    assert times(await start_again(stage, every(200))) == [7_000, 200_000]
    assert times(await start_again(stage, every(300))) == [7_000, 200_000, 300_000]


async def test_nothing_is_cancelled_by_an_on_start_that_raises_or_whose_new_time_was_rolled_back(stage: Stage) -> None:
    first = await start_again(stage, every(200))
    Declared.trouble.append("half way")
    with pytest.raises(RuntimeError, match="half way"):
        await start_again(stage, every(300))
    Declared.trouble.clear()
    assert await start_again(stage, every(200)) == first
    assert await start_again(stage, ("regretted", [], {})) == first


async def test_what_an_on_start_that_came_to_its_half_only_has_replaced_is_cancelled_by_the_next(stage: Stage) -> None:
    await start_again(stage, every(200))
    Declared.trouble.append("half way")
    with pytest.raises(RuntimeError, match="half way"):
        await start_again(stage, every(300))
    Declared.trouble.clear()
    assert times(await start_again(stage, every(300))) == [300_000]


@pytest.mark.parametrize("told", [{"key": "t"}, {"schedule_id": "t"}])
async def test_a_key_in_on_start_stands_for_what_is_declared_now(
    stage: Stage, told: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    (old,) = await start_again(stage, every(200, **told))
    (new,) = await start_again(stage, every(500, **told))
    assert (new["schedule_id"], times([new])) == (old["schedule_id"], [500_000])
    assert new["next_at_ms"] > old["next_at_ms"] + 300_000
    assert "(every 200 s: note) is replaced by what on_start declares now: " in caplog.text
    (renamed,) = await start_again(stage, every(500, "named", "x", jitter_ms=1, **told))
    assert renamed == {**new, "callback": "named", "payload": "x", "jitter_ms": 1}
    assert times(await start_again(stage, at("0 9 * * *", **told))) == ["0 9 * * *"]


async def test_a_single_time_with_a_key_is_planned_once_and_an_edit_of_its_payload_keeps_the_time(stage: Stage) -> None:
    (old,) = await start_again(stage, at(20, payload="old", key="k"))
    assert await start_again(stage, at(30, payload="old", key="k")) == [old]
    assert await start_again(stage, at(30, payload="new", key="k")) == [{**old, "payload": "new"}]
    Declared.wish.clear()
    await asyncio.sleep(30)
    assert [note.payload for note in await notes(stage, Declared)] == ["new"]


async def test_what_was_missed_is_made_up_for_and_a_pause_stays_when_on_start_replaces(stage: Stage) -> None:
    await start_again(stage, every(200, key="a"), every(200, key="b"))
    await do(
        stage,
        "schedules.pause",
        (await do(stage, "schedules.list", kind=Declared))[1]["schedule_id"],
        kind=Declared,
    )
    rows = await start_again(stage, every(200, payload="x", key="a"), every(300, key="b"))
    assert [row["status"] for row in rows] == ["waiting", "paused"]
    await asyncio.sleep(220)
    assert [note.payload for note in await notes(stage, Declared)] == ["x"]


async def test_a_callback_that_was_renamed_under_its_key_is_called_though_the_schedule_was_parked(stage: Stage) -> None:
    await start_again(stage, at(1, "poison", key="k", retry={"attempts_max": 1}))
    await asyncio.sleep(5)
    (parked,) = await start_again(stage, at(1, "poison", key="k", retry={"attempts_max": 1}))
    assert parked["status"] == "parked"
    await start_again(stage, at(1, "note", "well", key="k"))
    await asyncio.sleep(2)
    assert "well" in [note.payload for note in await notes(stage, Declared)]


async def test_one_key_for_two_schedules_of_on_start_is_refused(stage: Stage) -> None:
    with pytest.raises(ConflictingRequest, match=r"every 2 s, not every 5 s.*on_start of .* declares both"):
        await start_again(stage, every(2, key="t"), every(5, key="t"))


async def test_a_row_of_earlier_code_is_left_alone_until_on_start_declares_it(stage: Stage) -> None:
    await start_again(stage, every(200))
    await do(stage, "as_before", kind=Declared)
    assert times(await start_again(stage, every(300))) == [200_000, 300_000]
    await do(stage, "as_before", kind=Declared)
    assert times(await start_again(stage, every(200))) == [200_000, 300_000]
    assert times(await start_again(stage, every(400))) == [300_000, 400_000]
