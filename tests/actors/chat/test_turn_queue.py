"""The queue of one chat: one turn at a time, in order, each with its own end; and when it is at rest."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from perdure.actors import Client
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace
from tests.actors.chat.desk import Outside
from tests.actors.chat.talk import Worker, call, status_of, tell, until

REFUSED = Fault(kind=FaultKind.STATUS, status=401, type="invalid_request_error", message="Wrong key")


@pytest.mark.shows(chat_recovery="C-0446 C-0447 C-0449 C-0450 C-0452 C-0453 C-0456 C-0461 C-0462 C-0716")
def test_turns_have_their_places_and_their_ends_and_rest_is_when_none_is_left() -> None:
    """C-0446, C-0447, C-0449 to C-0453, C-0456, C-0461, C-0462: one that fails holds up nobody behind it."""

    async def story(client: Client) -> None:
        loop = asyncio.get_running_loop()
        assert await call(client, Worker, "is_stable", 0) is True, (
            "where nothing was asked there is nothing to wait for"
        )
        asked = ["first", "second", "third"]
        for name in asked:
            await call(client, Worker, "submit_messages", f"words of the {name}", request_id=name)
        await until(lambda: len(Outside.provider.log()) == 1)
        told = {each["request_id"]: each["status"] for each in await call(client, Worker, "list_turns")}
        assert told == {"first": "running", "second": "accepted", "third": "accepted"}
        assert await call(client, Worker, "is_stable", 10) is False, "it does not wait for longer than it was told"
        resting = asyncio.ensure_future(call(client, Worker, "is_stable", 60_000))
        await asyncio.sleep(1)
        await call(client, Worker, "submit_messages", "words of the fourth", request_id="fourth")
        assert await resting is True
        ended = await call(client, Worker, "list_turns")
        assert [each["request_id"] for each in ended] == [*asked, "fourth"]
        assert [each["status"] for each in ended] == ["completed", "error", "completed", "completed"]
        for earlier, later in itertools.pairwise(ended):
            assert earlier["ended_at_ms"] <= later["started_at_ms"], "one at a time"
        at_rest = loop.time()
        assert await call(client, Worker, "is_stable", 60_000) is True
        assert loop.time() - at_rest < 1
        results = [await call(client, Worker, "attach", name) for name in asked]
        assert [result.ok for result in results] == [True, False, True]

    tell(story, plan=FaultPlan.at({2: REFUSED}), pace=Pace(first_ms=1_000))
    assert Outside.provider.counters().open_most == 1


@pytest.mark.shows(chat_recovery="C-0448 C-0451 C-0454 C-0455 C-0459")
def test_what_was_queued_when_the_conversation_was_cleared_never_begins() -> None:
    """C-0448, C-0451, C-0454, C-0455, C-0459: however often it is cleared, nothing of before runs, and nothing of after is lost."""

    async def story(client: Client) -> None:
        for generation in range(3):
            for number in range(3):
                name = f"{generation}-{number}"
                await call(client, Worker, "submit_messages", f"words {name}", request_id=name)
            await until(lambda: bool(Outside.provider.counters().open))
            assert len(await call(client, Worker, "list_turns", "accepted")) == 2
            await call(client, Worker, "clear")
            assert await call(client, Worker, "list_turns") == []
            assert await call(client, Worker, "is_stable", 0) is True
        assert (await call(client, Worker, "chat", "words at last", request_id="last")).ok
        assert await status_of(client, Worker, "last") == "completed"

    tell(story, pace=Pace(first_ms=1_000))
    asked = [record.body["messages"][-1]["content"] for record in Outside.provider.log()]
    assert asked == ["words 0-0", "words 1-0", "words 2-0", "words at last"]


@pytest.mark.shows(chat_recovery="C-0460 C-1210")
def test_those_that_wait_can_be_cancelled_and_the_one_that_plays_goes_on() -> None:
    """C-0460: it completes, they never begin, and the transcript knows nothing of them."""

    async def story(client: Client) -> None:
        for name in ("plays", "waits", "waits-too"):
            await call(client, Worker, "submit_messages", f"words {name}", request_id=name)
        await until(lambda: bool(Outside.provider.counters().open))
        for name in ("waits", "waits-too"):
            assert await call(client, Worker, "cancel_chat", name) is True
        assert (await call(client, Worker, "attach", "plays")).ok
        assert await call(client, Worker, "is_stable", 0) is True
        assert [each["id"] for each in await call(client, Worker, "get_messages")] == ["plays-0", "plays-answer"]

    tell(story, pace=Pace(first_ms=1_000))
    assert len(Outside.provider.log()) == 1
