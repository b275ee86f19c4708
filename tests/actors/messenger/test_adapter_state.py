"""The state that adapters keep: subscriptions, locks, queues, lists and a cache, each with the spec's behaviour and without its gaps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.actors import ChatState, key_shard, shard_of
from perdure.ledger import BadRequest
from perdure.scenarios.testing.laboratory import Laboratory
from tests.kit import played

T = "telegram:42"
Ask = Callable[..., Awaitable[Any]]


def keep(story: Callable[[Ask], Awaitable[None]]) -> None:
    """Play a story with one shard."""
    with Laboratory(1) as laboratory:

        async def main(client: Any) -> None:
            async def ask(method: str, *args: Any, **options: Any) -> Any:
                return await client.call(ChatState, "shard", method, args, options)

            await story(ask)

        laboratory.play(main)
        laboratory.settle()
        laboratory.simulation.raise_errors()


@pytest.mark.shows(messenger="M2 M76")
@played(keep)
async def test_a_thread_is_subscribed_until_it_is_not_any_more(ask: Ask, /) -> None:
    """M2, M76; there is nothing to connect to first (M1)."""
    assert await ask("is_subscribed", T) is False
    await ask("subscribe", T)
    assert await ask("is_subscribed", T) is True
    await ask("unsubscribe", T)
    assert await ask("is_subscribed", T) is False


@pytest.mark.shows(messenger="M3 M77 weakness-39")
@played(keep)
async def test_a_lock_has_one_holder_who_may_keep_it_and_whose_fence_rises(ask: Ask, /) -> None:
    """M3, M77, weakness 39: an overtaken holder is told so, and can be told from the new one by its number."""
    first = await ask("acquire_lock", T, 1_000)
    assert await ask("acquire_lock", T, 1_000) is None
    assert await ask("extend_lock", first, 5_000) is True
    await asyncio.sleep(3)
    assert await ask("acquire_lock", T, 1_000) is None, "it was kept for longer"
    await asyncio.sleep(3)
    second = await ask("acquire_lock", T, 1_000)
    assert second["fence"] > first["fence"]
    assert await ask("extend_lock", first, 1_000) is False
    assert await ask("check_lock", first) is False
    await ask("release_lock", first)
    assert await ask("check_lock", second) is True, "only the holder gives it back"
    await ask("release_lock", second)
    third = await ask("acquire_lock", T, 60_000)
    await ask("force_release_lock", T)
    assert (await ask("acquire_lock", T, 1_000))["fence"] == third["fence"] + 1


@pytest.mark.shows(messenger="M4 M78")
@played(keep)
async def test_a_queue_keeps_its_newest_entries_in_order_and_drops_what_expired(ask: Ask, /) -> None:
    """M4, M78; what expired is not counted (weakness 39)."""
    assert await ask("enqueue_entry", T, "gone", 9, 100) == 1
    await asyncio.sleep(1)
    assert [await ask("enqueue_entry", T, each, 2) for each in "abc"] == [1, 2, 2]
    assert await ask("queue_depth", T) == 2
    assert [await ask("dequeue_entry", T) for _ in range(3)] == ["b", "c", None]
    for entry, ttl_ms in (("long", 60_000), ("short", 100), ("for ever", None)):
        await ask("enqueue_entry", T, entry, 9, ttl_ms)
    await asyncio.sleep(1)
    assert [await ask("dequeue_entry", T) for _ in range(3)] == ["long", "for ever", None], "each has its own time"


@pytest.mark.shows(messenger="M5 M79 weakness-38")
@played(keep)
async def test_the_cache_forgets_in_time_and_sets_once(ask: Ask, /) -> None:
    """M5, M79, weakness 38: a time to live is a number above 0, or for ever."""
    assert await ask("get", "k") is None
    await ask("set", "k", {"a": 1}, 1_000)
    assert await ask("set_if_not_exists", "k", 2) is False
    assert await ask("get", "k") == {"a": 1}
    await asyncio.sleep(2)
    assert await ask("get", "k") is None
    assert await ask("set_if_not_exists", "k", 2) is True
    await ask("delete", "k")
    assert await ask("get", "k") is None
    for ttl in (0, -1, float("nan"), float("inf")):
        with pytest.raises(BadRequest, match="ttl_ms"):
            await ask("set", "k", 1, ttl)
    lock = await ask("acquire_lock", T, 1_000)
    for ttl in (0, -1, None, float("inf")):
        for method, about in (("acquire_lock", "another"), ("extend_lock", lock)):
            with pytest.raises(BadRequest, match="ttl_ms"):
                await ask(method, about, ttl)
    with pytest.raises(BadRequest, match="value"):
        await ask("set", "k", None)


@pytest.mark.shows(messenger="M6 M7 M80 M81")
@played(keep)
async def test_a_list_keeps_its_newest_values_and_the_last_time_to_live_holds_for_all(ask: Ask, /) -> None:
    """M6, M7, M80, M81."""
    for each in range(5):
        await ask("append_to_list", "l", each, 3)
    assert await ask("get_list", "l") == [2, 3, 4]
    await ask("append_to_list", "l", 5, 3, 1_000)
    await ask("append_to_list", "l", 6, 3)
    assert await ask("get_list", "l") == [4, 5, 6], "without a time of its own it takes that of the list"
    await asyncio.sleep(2)
    assert await ask("get_list", "l") == []


@pytest.mark.shows(messenger="weakness-37 case-21")
@played(keep)
async def test_a_list_that_expired_does_not_come_back_with_its_next_value(ask: Ask, /) -> None:
    """Weakness 37, case 21 of §13.7; also in a later life of the agent."""
    await ask("append_to_list", "l", "old", None, 500)
    await asyncio.sleep(60)
    await ask("append_to_list", "l", "new", None, 60_000)
    assert await ask("get_list", "l") == ["new"]


@pytest.mark.shows(messenger="M8 M82 weakness-40")
def test_keys_go_to_the_shard_of_their_thread() -> None:
    """M8, M82, weakness 40: also those by which a message is known again, whatever the adapter is called."""
    assert shard_of("telegram:42:7") == shard_of("telegram:42") == "telegram:42"
    assert shard_of("nothing") == shard_of("a:") == "default"
    for prefix in ("thread-state:", "channel-state:", "msg-history:"):
        assert key_shard(f"{prefix}telegram:42:7") == "telegram:42"
    assert key_shard("transcripts:user:ada") == "user:ada"
    assert key_shard("dedupe:telegram:42:1001") == key_shard("dedupe:telegram:telegram:42:1001") == "telegram:42"
    assert key_shard("dedupe:support-bot:42:1001") == "support-bot:42"
    assert key_shard("whatever") is None
