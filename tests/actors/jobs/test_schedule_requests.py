"""Asking for schedules: what is refused and why, what is the same schedule, and what can be seen of it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest

from perdure.ledger import BadRequest, ConflictingRequest, TooLarge
from tests.actors.planners import Patient, Planner, do, payloads
from tests.kit import ROOMY, Stage, address, staged

HOURLY = "0 * * * *"
Asked = tuple[str, list[Any], dict[str, Any]]

# ---------------------------------------------------------------- what is refused

BAD: list[tuple[str, list[Any], dict[str, Any], str]] = [
    *(("schedule", [when, "note"], {}, "when") for when in (math.nan, math.inf, -5, True, None, "61 * * * *", "")),
    *(("schedule", [when, "note"], {}, "when") for when in ("at 2026-01-01T00:00:00", "at 9999-01-01T00:00:00+00:00")),
    *(("schedule_every", [every, "note"], {}, "interval_s") for every in (0, -1, math.nan, 1e9, True, "1")),
    *(("schedule", [1, callback], {}, "callback") for callback in ("nope", 5, "failures", None, "notes", "do")),
    *(("schedule_every", [1, callback], {}, "callback") for callback in ("nope", 5)),
    *(
        ("schedule", [1, "note"], {"time_zone": zone}, "time_zone")
        for zone in ("Mars/Base", "", 5, "../etc/passwd", "x" * 300)
    ),
    *(("schedule", [HOURLY, "note"], {"catch_up": policy}, "catch_up") for policy in ("never", 1, None)),
    *(("schedule", [1, "note"], {"catch_up": policy}, "catch_up") for policy in ("all", "skip")),
    *(("schedule", [HOURLY, "note"], {"overlap": policy}, "overlap") for policy in ("allow", "x", None)),
    ("schedule", [1, "note"], {"overlap": "queue"}, "overlap"),
    *(("schedule", [1, "note"], {"jitter_ms": jitter}, "jitter_ms") for jitter in (-1, math.nan, True, "1", 1e9)),
    ("schedule_every", [1, "note"], {"jitter_ms": 1_001}, "jitter_ms"),
    *(("schedule", [1, "note"], {"key": key}, "key") for key in ("", " ", 5, "x" * 300, "a\x00b")),
    *(("schedule", [1, "note"], {"schedule_id": key}, "schedule_id") for key in ("", 5, "x" * 300)),
    ("schedule", [1, "note"], {"schedule_id": "a", "key": "b"}, "key"),
    ("schedule", [1, "note"], {"retry": {"attempts_max": 0}}, "retry.attempts_max"),
    ("queue", ["note"], {"retry": {"attempts_max": 1.5}}, "retry.attempts_max"),
    *(("schedule", [1, "note"], {"retry": retry}, "retry") for retry in (3, {"tries": 3})),
    ("schedule", [1, "note"], {"retry": {"first_ms": 60_000}}, "retry.first_ms"),
    *(("queue", [callback], {}, "callback") for callback in ("nope", None, 7, "notes")),
    *(("queue", ["note"], {"key": key}, "key") for key in ("", 5)),
    *(("schedules.list", [], {name: "x"}, name) for name in ("type", "status", "between", "limit")),
    *(("schedules.list", [], {"limit": limit}, "limit") for limit in (0, 1_001, True)),
    ("queued.list", [], {"status": "asleep"}, "status"),
]


@pytest.mark.shows(schedules="S151 S152 S153 S154")
async def test_a_bad_request_names_its_field_and_writes_nothing(stage: Stage) -> None:
    for method, args, kwargs, field in BAD:
        with pytest.raises(BadRequest) as problem:
            await do(stage, method, *args, **kwargs)
        assert problem.value.field == field, (method, args, kwargs, problem.value)
    assert await do(stage, "schedules.list") == await do(stage, "queued.list") == []


@staged(limits=replace(ROOMY, callback_payload_bytes_max=1000))
async def test_a_payload_must_be_plain_data_of_a_bearable_size(stage: Stage) -> None:
    for method, when in (("schedule", [1]), ("schedule_every", [1]), ("queue", [])):
        with pytest.raises(TooLarge, match=r"payload: has .* bytes encoded; the limit is 1000"):
            await do(stage, method, *when, "note", "x" * 2_000)
        with pytest.raises(BadRequest, match=r"payload: .* is no plain data"):
            await stage.call(Planner, "odd_payload", method, when)


@staged(limits=replace(ROOMY, schedules_max=3))
async def test_an_agent_has_a_limit_of_schedules(stage: Stage) -> None:
    for number in range(3):
        await do(stage, "schedule", 60, "note", number)
    with pytest.raises(BadRequest, match="schedule: this agent has 3 entries, which is the limit"):
        await do(stage, "schedule", 60, "note", 3)


# ---------------------------------------------------------------- what is the same


@pytest.mark.shows(
    chat_recovery="C-1366 C-1367 C-1368 C-1369",
    schedules="S17 S18 S19 S20 S21 S22 S23 S24 S25 S26 S29 S32 S33 S34 S35 S36",
)
@pytest.mark.parametrize(
    ("requests", "expected"),
    [
        ([("schedule", [HOURLY, "note", 1], {})] * 5, 1),
        ([("schedule", [HOURLY, "note"], {}), ("schedule", ["0  *  * * *", "note"], {})], 1),
        ([("schedule", [HOURLY, "note"], {}), ("schedule", ["1 * * * *", "note"], {})], 2),
        ([("schedule", [HOURLY, "note", 1], {}), ("schedule", [HOURLY, "note", 2], {})], 2),
        ([("schedule", [HOURLY, "note"], {}), ("schedule", [HOURLY, "slow"], {})], 2),
        ([("schedule", [HOURLY, "note"], {}), ("schedule", [HOURLY, "note"], {"time_zone": "Europe/Berlin"})], 2),
        (
            [
                ("schedule", [HOURLY, "note"], {"schedule_id": "a"}),
                ("schedule", [HOURLY, "note"], {"schedule_id": "b"}),
            ],
            2,
        ),
        ([("schedule_every", [60, "note", 1], {})] * 5, 1),
        ([("schedule_every", [60, "note", 1], {}), ("schedule_every", [61, "note", 1], {})], 2),
        ([("schedule_every", [60, "note", 1], {}), ("schedule_every", [60, "note", 2], {})], 2),
        ([("schedule_every", [60, "note", 1], {}), ("schedule_every", [60, "slow", 1], {})], 2),
        ([("schedule", [60, "note", 1], {"key": "k"})] * 10, 1),
        ([("schedule", [60, "note", 1], {"key": "k"}), ("schedule", [70, "note", 1], {"key": "k"})], 1),
        ([("schedule", [60, "note", 1], {"schedule_id": "k"}), ("schedule", [70, "note", 1], {"schedule_id": "k"})], 1),
        (
            [("schedule", [f"at 2030-01-0{day}T00:00:00+00:00", "note", 1], {"key": "k"}) for day in (1, 2)],
            1,
        ),
        ([("schedule", [60, "note", 1], {"key": "k"}), ("schedule", [60, "note", 1], {"key": "l"})], 2),
        ([("schedule", [60, "note", 1], {})] * 2, 2),
    ],
)
async def test_which_requests_are_the_same_schedule(stage: Stage, requests: list[Asked], expected: int) -> None:
    told = [await do(stage, method, *args, **kwargs) for method, args, kwargs in requests]
    assert len({each["schedule_id"] for each in told}) == expected
    assert len(await do(stage, "schedules.list")) == expected
    assert told[-1] == await do(stage, "schedules.get", told[-1]["schedule_id"])


async def test_a_key_with_other_content_is_a_conflict_that_names_the_field_both_values_and_what_to_do(
    stage: Stage,
) -> None:
    await do(stage, "schedule", 60, "note", 1, key="k")
    await do(stage, "schedule_every", 2, "note", 1, key="e")
    before = await do(stage, "schedules.list")
    moment = "at 2030-01-01T00:00:00+00:00"
    single = "(delayed, at a single time, not "
    for field, values, args, kwargs in (
        ("when", f"{single}scheduled, at a single time)", [moment, "note", 1], {}),
        ("when", f"{single}'0 * * * *')", [HOURLY, "note", 1], {}),
        ("callback", "(note, not slow)", [60, "slow", 1], {}),
        ("payload", "", [60, "note", 2], {}),
        ("retry", "'attempts_max': None", [60, "note", 1], {"retry": {"attempts_max": 2}}),
        ("jitter_ms", "(0, not 5)", [60, "note", 1], {"jitter_ms": 5}),
        ("interval_s", "(every 2 s, not every 5 s)", [5, "note", 1], {"key": "e"}),
    ):
        method, told = "schedule_every" if "key" in kwargs else "schedule", {"key": "k", **kwargs}
        with pytest.raises(ConflictingRequest) as problem:
            await do(stage, method, *args, **told)
        assert problem.value.field == field
        said = str(problem.value)
        assert f"the key '{told['key']}' exists with another {field}" in said
        assert values in said
        assert f"of {address(Planner, 'p')}) first" in said
    assert await do(stage, "schedules.list") == before


async def test_a_recurring_schedule_without_a_name_takes_over_what_the_latest_code_says(stage: Stage) -> None:
    first = await do(stage, "schedule", HOURLY, "note")
    changed = {"catch_up": "all", "overlap": "queue", "jitter_ms": 5, "retry": {"attempts_max": 2}}
    told = await do(stage, "schedule", HOURLY, "note", **changed)
    assert {**first, **changed} == {**told, "retry": changed["retry"]}
    assert told["retry"]["attempts_max"] == 2
    assert await do(stage, "schedules.list") == [told]


async def test_a_key_is_free_again_when_its_schedule_is_done(stage: Stage) -> None:
    for _ in range(2):
        await do(stage, "schedule", 1, "note", 1, key="k")
        await asyncio.sleep(3)
    assert await payloads(stage) == ["1", "1"]


# ---------------------------------------------------------------- what can be seen


@pytest.mark.shows(schedules="S4 S5 S6 S150", sub_agents="G29")
async def test_a_schedule_is_shown_as_it_was_asked_for(stage: Stage) -> None:
    told = await do(
        stage,
        "schedule",
        "*/5 * * * *",
        "note",
        {"a": [1, 2]},
        time_zone="Europe/Berlin",
        retry={"attempts_max": 4},
    )
    assert told == await do(stage, "schedules.get", told["schedule_id"])
    assert told.keys() == {
        *("schedule_id", "type", "callback", "payload", "status", "next_at_ms", "cron", "time_zone", "interval_ms"),
        *("catch_up", "overlap", "jitter_ms", "retry", "key", "attempt", "error", "created_at_ms", "number"),
    }
    assert (told["type"], told["cron"], told["time_zone"]) == ("cron", "*/5 * * * *", "Europe/Berlin")
    assert (told["payload"], told["callback"], told["interval_ms"]) == ({"a": [1, 2]}, "note", None)
    assert told["retry"] == {"attempts_max": 4, "first_ms": ROOMY.retry_first_ms, "most_ms": ROOMY.retry_most_ms}
    every = await do(stage, "schedule_every", 90, "note", kind=Patient)
    assert (every["type"], every["interval_ms"]) == ("interval", 90_000)
    assert every["retry"] == {"attempts_max": 5, "first_ms": 10, "most_ms": 20}


@pytest.mark.shows(schedules="S8")
async def test_schedules_are_listed_by_type_callback_status_and_time_page_by_page(stage: Stage) -> None:
    for after_s in (100, 200, 300):
        await do(stage, "schedule", after_s, "note", after_s)
    cron = await do(stage, "schedule", HOURLY, "slow")
    every = await do(stage, "schedule_every", 500, "note")
    await do(stage, "schedules.pause", every["schedule_id"])
    listed = await do(stage, "schedules.list")
    assert [each["type"] for each in listed] == ["delayed", "delayed", "delayed", "cron", "interval"]
    assert (
        await do(stage, "schedules.list", type="cron") == await do(stage, "schedules.list", callback="slow") == [cron]
    )
    assert len(await do(stage, "schedules.list", type=["cron", "delayed"])) == 4
    assert [each["schedule_id"] for each in await do(stage, "schedules.list", status="paused")] == [
        every["schedule_id"]
    ]
    first, last = listed[0]["next_at_ms"], listed[1]["next_at_ms"]
    assert await do(stage, "schedules.list", between=[first, last]) == listed[:2]
    assert await do(stage, "schedules.list", "delayed", between=[last, None]) == listed[1:3]
    assert await do(stage, "schedules.list", limit=2) == listed[:2]
    assert await do(stage, "schedules.list", limit=2, cursor=listed[1]["number"]) == listed[2:4]


@pytest.mark.shows(schedules="S1 S2 S3 S7")
async def test_what_is_not_there_is_neither_found_nor_cancelled(stage: Stage) -> None:
    assert await do(stage, "schedules.get", "x") is None
    for method in ("schedules.cancel", "schedules.pause", "schedules.resume", "schedules.retry"):
        assert await do(stage, method, "x") is False
    assert await do(stage, "schedules.history", "x") == []
    told = await do(stage, "schedule_every", 10, "note")
    assert await do(stage, "schedules.cancel", told["schedule_id"]) is True
    assert await do(stage, "schedules.get", told["schedule_id"]) is None
    await asyncio.sleep(30)
    assert await payloads(stage) == []


async def test_two_agents_do_not_see_each_others_schedules(stage: Stage) -> None:
    for name in ("a", "b"):
        await do(stage, "schedule", HOURLY, "note", name=name)
    (mine,) = await do(stage, "schedules.list", name="a")
    assert await do(stage, "schedules.cancel", mine["schedule_id"], name="a")
    assert len(await do(stage, "schedules.list", name="b")) == 1
    assert await do(stage, "schedules.list", name="a") == []


async def test_a_sync_callback_and_sync_code_may_plan_too(stage: Stage) -> None:
    await stage.call(Planner, "plan_from_a_thread", 1)
    await asyncio.sleep(5)
    assert sorted(await payloads(stage)) == ["planned by a method", "queued by a method"]


@pytest.mark.shows(chat_recovery="C-1370", schedules="S27")
@staged(limits=replace(ROOMY, schedule_history_max=4, schedule_histories_max=5))
async def test_the_history_is_bounded_and_so_is_that_of_schedules_that_are_gone(stage: Stage) -> None:
    await do(stage, "schedule_every", 0.5, "note", schedule_id="often")
    for number in range(115):
        await do(stage, "schedule", 0, "note", schedule_id=f"once {number}")
    await asyncio.sleep(10)
    assert len(await do(stage, "schedules.history", "often")) == 4
    known = [bool(await do(stage, "schedules.history", f"once {number}")) for number in range(115)]
    assert known[-5:] == [True] * 5
    assert known[0] is False
