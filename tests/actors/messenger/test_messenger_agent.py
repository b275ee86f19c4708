"""What an author decides: what is answered, with which words, and what is said without being asked."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from perdure.actors import Kind, Messenger, MessengerEvent, client_tool
from perdure.actors.messenger.messenger_agent import NOTICE_CHARS_MAX
from perdure.ledger import BadRequest
from perdure.policies import Delivery
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import ScriptedCall
from tests.actors.chat.desk import Outside
from tests.actors.chat.talk import asks_for
from tests.actors.messenger.paper import Board, Bot, Chat, Paper, answer_to, visit


class Choosy(Bot):
    """Answers some with words of its own, some not at all, and cannot stand one."""

    def on_messenger_event(self, event: MessengerEvent) -> bool | str:
        if "raise" in event.text:
            raise ValueError("not that one")
        return {"/menu": "Soup or salad?", "/quiet": False}.get(event.text, True)


class Thoughtful(Choosy):
    """Takes a moment for it."""

    async def on_messenger_event(self, event: MessengerEvent) -> bool | str:
        await asyncio.sleep(0.01)
        return super().on_messenger_event(event)


@pytest.mark.shows(messenger="M62 M63")
@pytest.mark.parametrize("bot", [Choosy, Thoughtful])
def test_the_author_says_which_events_the_model_answers(bot: type[Bot]) -> None:
    """M62, M63: commands are answered without a turn, in their place; what an event raises refuses it, and nothing was written."""

    async def story(chat: Chat) -> Any:
        assert (await chat.hear("/menu"))["accepted"] is True
        assert (await chat.hear("/menu"))["accepted"] is False
        quiet = await chat.hear("/quiet")
        assert (quiet["accepted"], quiet["why"]) == (False, "on_messenger_event")
        with pytest.raises(Exception, match="not that one"):
            await chat.hear("please raise")
        await chat.hear("one short")
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story, bot)
    assert Board.thread() == ["Soup or salad?", answer_to("short")]
    assert len(rows) == 2
    assert len(Outside.provider.log()) == 1


class Subscribed(Bot):
    """Stays in a thread in which it was mentioned."""

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        wanted = frozenset({"mention", "subscribed-thread"})
        return [Messenger(id="paper", adapter=Paper(), respond_to=wanted)]


def test_a_thread_in_which_the_agent_was_mentioned_is_listened_to_from_then_on() -> None:
    async def story(chat: Chat) -> Any:
        assert (await chat.hear("short 1", kind=Kind.MESSAGE))["accepted"] is False
        assert (await chat.hear("short 2", kind=Kind.DIRECT))["accepted"] is False
        assert (await chat.hear("short 3", kind=Kind.ACTION))["accepted"] is False
        assert (await chat.hear("short 4", kind=Kind.MENTION))["accepted"] is True
        await chat.rest()
        chat.kill()
        assert (await chat.hear("short 5", kind=Kind.MESSAGE))["accepted"] is True
        assert (await chat.hear("short 6", kind=Kind.MESSAGE, thread="other"))["accepted"] is False
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story, Subscribed)
    assert [row["outcome"] for row in rows] == ["answered", "answered"]


def test_by_default_chatter_of_others_is_no_question() -> None:
    async def story(chat: Chat) -> Any:
        assert (await chat.hear("chatter", kind=Kind.MESSAGE))["why"] == "not for the agent"
        assert (await chat.hear("pressed", kind=Kind.ACTION))["accepted"] is False

    Board.begin()
    visit(story)


@pytest.mark.shows(messenger="M50 M51 M52 M53 M54 M55 M56")
def test_a_notice_is_posted_in_its_place_and_begins_no_turn() -> None:
    """M50 to M56: the model hears of it if it should, and where it is to go must be known."""

    async def story(chat: Chat) -> Any:
        await chat.hear("a story please")
        await chat.do("deliver_notice", "**Soon** we close.", "t")
        await chat.do("deliver_notice", "We have closed.", "t", inform_model=True, kind="closing")
        rows = await chat.rest()
        with pytest.raises(BadRequest, match="thread_id"):
            await chat.do("deliver_notice", "To whom?", "")
        with pytest.raises(BadRequest, match="text"):
            await chat.do("deliver_notice", " ", "t")
        with pytest.raises(BadRequest, match=f"the limit is {NOTICE_CHARS_MAX}"):
            await chat.do("deliver_notice", "x" * (NOTICE_CHARS_MAX + 1), "t")
        largest = await chat.do("deliver_notice", "x" * NOTICE_CHARS_MAX, "u")
        assert await chat.do("cancel_reply", largest)
        with pytest.raises(BadRequest, match="kind"):
            await chat.do("deliver_notice", "Hello", "t", kind="k" * 65)
        longest = await chat.do("deliver_notice", "x", "u", kind="k" * 64)
        assert await chat.do("cancel_reply", longest)
        with pytest.raises(BadRequest, match="messenger_id"):
            await chat.do("deliver_notice", "Hello", "t", "other")
        return rows, await chat.do("get_messages")

    Board.begin()
    (rows, messages), _ = visit(story, pace=Pace(between_ms=50))
    assert [row["kind"] for row in rows] == ["reply", "notice", "closing"]
    assert Board.thread() == [answer_to("story"), "**Soon** we close.", "We have closed."]
    (told,) = [each for each in messages if each["metadata"].get("reply")]
    assert told["id"].startswith("closing")
    assert (told["role"], told["metadata"]["kind"]) == ("assistant", "closing")
    assert len(Outside.provider.log()) == 1


class Asking(Bot):
    """May ask the person something."""

    def tools(self) -> list[Any]:
        return [client_tool("ask_user", "Ask the user.", {"type": "object", "properties": {}})]


@pytest.mark.parametrize("comes", ["before", "after"])
def test_an_answer_that_waits_for_a_person_keeps_nobody_waiting_behind_it(comes: str) -> None:
    async def story(chat: Chat) -> Any:
        await chat.hear("go")
        await chat.until(lambda: len(Outside.provider.log()) == 1)
        if comes == "before":
            await chat.hear("what then")
        await chat.until(lambda: chat.do("has_pending_interaction"))
        if comes == "after":
            await chat.hear("what then")
        await chat.until(lambda: len(Board.thread()) == 2)
        (message,) = [each for each in await chat.do("get_messages") if "toolCallId" in str(each)]
        (call_id,) = [part["toolCallId"] for part in message["parts"] if "toolCallId" in part]
        await chat.do("resolve_tool_call", call_id, "yes")
        return await chat.rest()

    Board.begin()
    rows, _ = visit(
        story, Asking, script=asks_for(ScriptedCall(name="ask_user")), pace=Pace(first_ms=300, between_ms=50)
    )
    assert [row["outcome"] for row in rows] == ["answered", "answered"]
    assert Board.thread()[0].startswith("On it. ")
    assert Board.thread()[0].endswith("∎")


class Small(Bot):
    """Remembers little."""

    delivery: ClassVar[Delivery] = Delivery(kept_max=3)


def test_old_replies_are_forgotten_with_all_that_belongs_to_them() -> None:
    async def story(chat: Chat) -> Any:
        for number in range(8):
            await chat.hear(f"short {number}")
            await chat.rest()
        return await chat.rows()

    Board.begin()
    rows, _ = visit(story, Small)
    assert [row["number"] for row in rows] == [6, 7, 8]
    assert all(len(row["posts"]) == 1 for row in rows)


def test_a_parked_reply_outlives_the_pruning_of_what_is_settled() -> None:
    """Its answer is kept for whoever tries again, and its event is known again, as those of the replies that are kept are."""

    async def story(chat: Chat) -> Any:
        for number in range(9):
            await chat.hear(f"short {number}")
            await chat.until(lambda number=number: len(Board.thread()) == number)
            await asyncio.sleep(1)
        rows = await chat.rows()
        assert [row["number"] for row in rows] == [1, 8, 9]
        assert [row["status"] for row in rows] == ["parked", "settled", "settled"]
        heard = [(await chat.hear(f"short {number}"))["accepted"] for number in (0, 8, 2)]
        assert heard == [False, False, True], "of what was forgotten nothing is known"
        assert await chat.do("retry_delivery", rows[0]["reply_id"]) is True
        return await chat.rest()

    Board.begin(post=["refused"])
    rows, _ = visit(story, Small)
    assert (rows[0]["number"], rows[0]["outcome"]) == (1, "answered")


def test_of_many_replies_the_newest_are_listed_and_no_more_than_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.actors.messenger.messenger_agent.LISTED_MAX", 2)

    async def story(chat: Chat) -> None:
        for number in range(3):
            await chat.hear("/menu", key=str(number))
        await asyncio.sleep(5)
        listed = [await chat.do("list_deliveries", None, limit) for limit in (1, 2, 3)]
        assert [[row["number"] for row in rows] for rows in listed] == [[3], [2, 3], [2, 3]]

    Board.begin()
    visit(story, Choosy)


def test_bad_input_is_refused_by_the_name_of_its_field() -> None:
    async def story(chat: Chat) -> None:
        with pytest.raises(BadRequest, match="messenger_id"):
            await chat.hear("hi", messenger_id="other")
        with pytest.raises(BadRequest, match="limit"):
            await chat.do("list_deliveries", None, 0)
        with pytest.raises(BadRequest, match="status"):
            await chat.do("list_deliveries", "lost")
        with pytest.raises(BadRequest, match="event"):
            await chat.do("receive", {"kind": "shout"})
        assert await chat.do("cancel_reply", "nothing") is False
        assert await chat.rows() == []
        await asyncio.sleep(1)

    Board.begin()
    visit(story)
