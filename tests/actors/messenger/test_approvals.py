"""Calls that need approval, asked for in the thread with buttons: who was first, who may, and what a death leaves of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from perdure.actors import Approval, KillPoint, Messenger, MessengerEvent, tool
from perdure.actors.messenger.messenger_agent import Thread
from perdure.actors.messenger.messenger_events import Person
from perdure.ledger import BadRequest
from perdure.policies import Answerer, Delivery
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import Outside
from tests.actors.chat.room import calls
from tests.actors.messenger.paper import Board, Bot, Chat, Paper, PaperWithButtons, pressed, said, visit
from tests.kit import Death

BEN = Person(id="8", user_name="ben", full_name="Ben")
IT, MOON = (ScriptedCall(name="launch", arguments={"what": what}) for what in ("it", "moon"))
SCRIPT = Script(
    questions=(calls("go", IT), ScriptedQuestion(asks="both", rounds=(Round(says="Two. ", calls=(IT, MOON)),)))
)

ASKED = 'May launch be called like this?\n```\n{\n "what": "it"\n}\n```'


@tool(needs_approval=True)
async def launch(what: str) -> str:
    """Launch something, if somebody allows it."""
    Outside.effects["launch", what] += 1
    return f"launched {what}"


class Pad(Bot):
    """Launches."""

    adapter: ClassVar[Paper] = PaperWithButtons()
    options: ClassVar[dict[str, Any]] = {}

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        return [Messenger(id="paper", adapter=cls.adapter, delivery=cls.delivery, **cls.options)]

    def tools(self) -> list[Any]:
        return [launch]


def keys(label: str = "") -> list[str]:
    """The keys of the buttons that stand in the thread, or of those with a label."""
    return [each.key for found in Board.buttons.values() for each in found if label in ("", each.label)]


async def asked(chat: Chat, text: str = "go") -> None:
    """Somebody asks for it, and the buttons are there."""
    await chat.hear(text)
    await chat.until(lambda: bool(keys()))


async def press(
    chat: Chat, key: str, press_id: str = "p1", author: Person | None = None, thread: str = "t", **more: Any
) -> Any:
    """A button is pressed: the webhook."""
    return await chat.do("_perdure_press", pressed(key, press_id, author=author, thread=thread), **more)


def outcome() -> str:
    """What the question says now."""
    return [each for each in Board.thread() if "May launch" in each][-1]


@pytest.mark.parametrize(("label", "words", "effects"), [("Approve", "Approved", 1), ("Deny", "Denied", 0)])
def test_a_call_that_needs_approval_is_asked_for_with_buttons_and_the_press_counts(
    label: str, words: str, effects: int
) -> None:
    async def story(chat: Chat) -> Any:
        await asked(chat)
        assert Board.thread()[-1] == ASKED
        assert [each.label for each in Board.buttons["m1"]] == ["Approve", "Deny"]
        assert all(len(each.encode()) <= 64 for each in keys())
        (key,) = keys(label)
        assert (await press(chat, key))["accepted"] is True
        assert (await press(chat, key))["accepted"] is False, "the webhook comes again"
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story, Pad, script=SCRIPT)
    assert outcome() == f"{ASKED}\n\n**{words} by paper:Ada L. (7).**"
    assert keys() == []
    assert Board.told == {"p1": [f"{words} by paper:Ada L. (7)."]}
    assert Outside.effects["launch", "it"] == effects
    assert len(Board.thread()) == 2
    assert [(row["kind"], row["outcome"]) for row in rows] == [
        ("reply", "answered"),
        ("question", "answered"),
        ("press", "answered"),
    ]
    assert ("launched it" in str(Outside.provider.log()[-1].body)) == bool(effects)


def test_of_two_presses_the_first_counts_and_the_second_is_told_who_that_was() -> None:
    async def story(chat: Chat) -> Any:
        await asked(chat)
        (approve,), (deny,) = keys("Approve"), keys("Deny")
        await press(chat, deny, "p1", BEN)
        await press(chat, approve, "p2")
        await chat.rest()
        await press(chat, approve, "p3")  # a device that has not seen the edit
        return await chat.rest()

    Board.begin()
    visit(story, Pad, script=SCRIPT)
    assert Board.told == {
        "p1": ["Denied by paper:Ben (8)."],
        "p2": ["Answered already. Denied by paper:Ben (8)."],
        "p3": ["Answered already. Denied by paper:Ben (8)."],
    }
    assert not Outside.effects
    assert outcome().endswith("**Denied by paper:Ben (8).**")


def test_each_call_has_a_message_of_its_own() -> None:
    async def story(chat: Chat) -> Any:
        await asked(chat, "both")
        await chat.until(lambda: len(keys()) == 4)
        assert ["it" in each or "moon" in each for each in Board.thread()] == [False, True, True]
        (approve, approve_too) = keys("Approve")
        await press(chat, approve, "p1")
        await chat.until(lambda: "p1" in Board.told)
        assert not Outside.effects["launch", "moon"]
        await press(chat, approve_too, "p2")
        return await chat.rest()

    Board.begin()
    visit(story, Pad, script=SCRIPT)
    assert (Outside.effects["launch", "it"], Outside.effects["launch", "moon"]) == (1, 1)
    assert Board.thread()[0].startswith("Two. Done: 2 results.")


@pytest.mark.parametrize(("approved", "words"), [(True, "Approved elsewhere."), (False, "Denied elsewhere.")])
@pytest.mark.parametrize("is_late", [False, True])
def test_what_was_answered_elsewhere_loses_its_buttons_and_a_late_press_is_told(
    approved: bool, words: str, is_late: bool
) -> None:
    """By a front end: `respond_to_approval`."""

    async def story(chat: Chat) -> Any:
        await asked(chat)
        (approve,) = keys("Approve")
        (message,) = [each for each in await chat.do("get_messages") if each["role"] == "assistant"]
        call_id = next(part["toolCallId"] for part in message["parts"] if part.get("state") == "approval-requested")
        assert await chat.do("respond_to_approval", call_id, approved) is True
        if is_late:
            await chat.rest()
            assert keys() == []
            assert outcome().endswith(f"**{words}**"), "nobody has to press for it"
        await press(chat, approve)
        return await chat.rest()

    Board.begin()
    visit(story, Pad, script=SCRIPT)
    assert Board.told == {"p1": [f"Answered already. {words}"]}
    assert outcome().endswith(f"**{words}**")
    assert Outside.effects["launch", "it"] == approved


def test_a_turn_that_was_cancelled_asks_no_more() -> None:
    async def story(chat: Chat) -> Any:
        await asked(chat)
        (approve,) = keys("Approve")
        (reply, _) = await chat.rows()
        await chat.do("cancel_reply", reply["reply_id"])
        await chat.until(lambda: not keys())
        await press(chat, approve)
        return await chat.rest()

    Board.begin()
    visit(story, Pad, script=SCRIPT)
    assert outcome().endswith("**No longer asked.**")
    assert Board.told == {"p1": ["Answered already. No longer asked."]}
    assert not Outside.effects


def test_messages_are_answered_while_a_call_waits_and_a_press_waits_for_none_of_them() -> None:
    async def story(chat: Chat) -> Any:
        await asked(chat)
        await chat.hear("story one")
        await press(chat, keys("Approve")[0])
        await chat.until(lambda: "p1" in Board.told)
        return await chat.rest()

    Board.begin()
    story_script = Script(questions=(*SCRIPT.questions, ScriptedQuestion(asks="story", concludes="Once")))
    visit(story, Pad, script=story_script)
    assert Outside.effects["launch", "it"] == 1
    assert any(each.startswith("Once") for each in Board.thread())


# ---------------------------------------------------------------- who may


def only_ben(event: MessengerEvent) -> bool:
    return event.author.id == "8"


class Guarded(Pad):
    options: ClassVar[dict[str, Any]] = {"may_answer": only_ben}


class Listed(Pad):
    options: ClassVar[dict[str, Any]] = {"may_answer": {"8"}}


class Strict(Pad):
    """Speaks to Ben alone, once it was woken."""

    def on_messenger_event(self, event: MessengerEvent) -> bool | str:
        return True if not event.is_press or event.author.id == "8" else "You are not Ben."


class Silent(Pad):
    async def on_messenger_event(self, event: MessengerEvent) -> bool | str:
        await asyncio.sleep(0.01)
        return not event.is_press or event.author.id == "8"


@pytest.mark.parametrize(
    ("bot", "words"),
    [
        (Guarded, "You may not answer this."),
        (Listed, "You may not answer this."),
        (Strict, "You are not Ben."),
        (Silent, "You may not answer this."),
    ],
)
def test_one_who_may_not_answer_is_told_so_and_another_one_counts(bot: type[Bot], words: str) -> None:
    async def story(chat: Chat) -> Any:
        await asked(chat)
        await press(chat, keys("Deny")[0], "p1")
        await chat.until(lambda: "p1" in Board.told)
        assert len(keys()) == 2
        await press(chat, keys("Approve")[0], "p2", BEN)
        return await chat.rest()

    Board.begin()
    visit(story, bot, script=SCRIPT)
    assert Board.told == {"p1": [words], "p2": ["Approved by paper:Ben (8)."]}
    assert Outside.effects["launch", "it"] == 1


@pytest.mark.parametrize("given", ["7", [7], [], {""}, 7, {"a": 1}])
def test_a_may_answer_that_is_none_is_refused_where_the_class_is_used(given: Any) -> None:
    class Wrong(Pad):
        options: ClassVar[dict[str, Any]] = {"may_answer": given}

    async def story(chat: Chat) -> None:
        with pytest.raises(BadRequest) as refused:
            await chat.hear("go")
        assert refused.value.field == "messengers.may_answer"

    visit(story, Wrong)


class Undecided(Pad):
    options: ClassVar[dict[str, Any]] = {"may_answer": lambda event: "perhaps"}


def test_a_may_answer_that_says_neither_refuses_the_press_and_changes_nothing() -> None:
    async def story(chat: Chat) -> None:
        await asked(chat)
        with pytest.raises(BadRequest, match="may_answer"):
            await press(chat, keys("Approve")[0])
        assert len(keys()) == 2
        await chat.do("cancel_reply", (await chat.rows())[0]["reply_id"])

    Board.begin()
    visit(story, Undecided, script=SCRIPT)
    assert Board.told == {}


@pytest.mark.parametrize(
    "key", ["perdure:", "perdure:x:0", "perdure:{}:7", "perdure:{}:-1", "perdure:{}:²", "perdure:{}"]
)
def test_a_press_of_nothing_that_was_asked_is_told_so(key: str) -> None:
    """Clients may send any data for a message of the bot."""

    async def story(chat: Chat) -> Any:
        await asked(chat)
        question = next(row["reply_id"] for row in await chat.rows() if row["kind"] == "question")
        await press(chat, key.format(question))
        await press(chat, keys("Deny")[0], "p2", thread="elsewhere")
        await press(chat, keys("Approve")[0], "p3")
        return await chat.rest()

    Board.begin()
    visit(story, Pad, script=SCRIPT)
    unknown = "This question is not known here any more."
    assert Board.told == {"p1": [unknown], "p2": [unknown], "p3": ["Approved by paper:Ada L. (7)."]}


def test_a_press_comes_by_a_webhook_alone() -> None:
    """Whoever may call `receive` says who speaks."""

    async def story(chat: Chat) -> None:
        await asked(chat)
        with pytest.raises(BadRequest, match="webhook"):
            await chat.do("receive", pressed(keys("Approve")[0], "p1"))
        await chat.do("cancel_reply", (await chat.rows())[0]["reply_id"])

    Board.begin()
    visit(story, Pad, script=SCRIPT)
    assert (Board.told, sum(Outside.effects.values())) == ({}, 0)


class Bare(Pad):
    adapter: ClassVar[Paper] = Paper()


def test_without_buttons_the_thread_is_told_what_waits() -> None:
    async def story(chat: Chat) -> Any:
        await chat.hear("go")
        await chat.until(lambda: bool(Board.thread()))
        assert "This messenger has no buttons" in Board.thread()[0]
        (message,) = [each for each in await chat.do("get_messages") if each["role"] == "assistant"]
        assert await chat.do("respond_to_approval", message["parts"][-1]["toolCallId"], True) is True
        return await chat.rest()

    Board.begin()
    visit(story, Bare, script=SCRIPT)
    assert outcome().endswith("**Approved elsewhere.**")
    assert Outside.effects["launch", "it"] == 1


@tool(needs_approval=Approval(to="ops", people=2, expires=3_600))
async def fire(what: str) -> str:
    """Launch what two of ops allow."""
    Outside.effects["fire", what] += 1
    return f"fired {what}"


class Range(Pad):
    """Asks two of ops."""

    ask_threads: ClassVar[Mapping[str, Thread]] = {"ops": "t"}

    def tools(self) -> list[Any]:
        return [fire]


class Foreign(Range):
    """Asks ops in a thread that is not theirs."""

    ask_threads: ClassVar[Mapping[str, Thread]] = {"ops": "u"}


FIRE = Script(questions=(calls("go", ScriptedCall(name="fire", arguments={"what": "it"})),))


def test_a_call_that_two_of_a_group_are_to_allow_waits_for_both() -> None:
    async def story(chat: Chat) -> Any:
        await asked(chat)
        (approve,) = keys("Approve")
        await press(chat, approve, "p1")
        await press(chat, approve, "p2")
        await chat.until(lambda: any("So far" in each for each in Board.thread()))
        assert len(keys()) == 2
        await press(chat, approve, "p3", BEN)
        return await chat.rest()

    Board.begin()
    visit(story, Range, script=FIRE)
    so_far = "2 people are asked to say the same. So far: Approved by paper:Ada L. (7)."
    assert Board.told["p1"] == [so_far]
    assert "has answered so already" in Board.told["p2"][0]
    assert Board.told["p3"] == ["Approved by paper:Ben (8)."]
    assert Outside.effects["fire", "it"] == 1
    assert "Until 20" in Board.thread()[0]


def test_a_thread_that_is_not_that_of_the_group_may_not_allow_it_and_the_inbox_may() -> None:
    async def story(chat: Chat) -> Any:
        await asked(chat)
        await press(chat, keys("Approve")[0])
        (row,) = await chat.client.ask("asks")
        for who in ("carl", "dora"):
            await chat.client.answer(row["ask_id"], True, Answerer(who, is_operator=True), "cli")
        return await chat.rest()

    Board.begin()
    visit(story, Foreign, script=FIRE)
    assert Board.told == {"p1": ["paper:Ada L. (7) is not asked; ops may answer"]}
    assert Board.thread()[0].endswith("**Approved by dora.**")
    assert Outside.effects["fire", "it"] == 1


def test_a_call_that_nobody_has_allowed_in_time_is_denied_and_says_so() -> None:
    async def story(chat: Chat) -> Any:
        await asked(chat)
        (approve,) = keys("Approve")
        await asyncio.sleep(4_000)
        await press(chat, approve)
        return await chat.rest()

    Board.begin()
    visit(story, Range, script=FIRE, timeout_ms=7_200_000)
    assert Board.told == {"p1": ["Answered already. Nobody has answered in time, so the call is denied."]}
    assert Board.thread()[0].endswith("**Nobody has answered in time, so the call is denied.**")
    assert not Outside.effects


# ---------------------------------------------------------------- what goes wrong

NOTE = Delivery().repeated_text


@pytest.mark.parametrize(
    ("faults", "messages"),
    [
        ({"post": ["busy"]}, 1),
        ({"post": ["unreached"]}, 1),
        ({"post": ["lost"]}, 1),
        ({"post": ["silent"]}, 2),
        ({"edit": ["lost", "silent"]}, 1),
        ({"press": ["unreached", "silent"]}, 1),
        ({"press": ["refused"]}, 1),
    ],
)
def test_a_question_is_posted_and_edited_as_carefully_as_an_answer(faults: dict[str, list[str]], messages: int) -> None:
    async def story(chat: Chat) -> Any:
        await asked(chat)
        await chat.until(lambda: sum(map(len, Board.buttons.values())) == 2 * messages)
        await press(chat, keys("Approve")[-1])
        return await chat.rest()

    Board.begin(**faults)
    rows, _ = visit(story, Pad, script=SCRIPT)
    questions = [each for each in Board.thread() if "May launch" in each]
    assert len(questions) == messages
    assert questions[-1].endswith("**Approved by paper:Ada L. (7).**")
    assert questions[-1].startswith(NOTE) == ("post" in faults and faults["post"][0] in ("lost", "silent"))
    assert Outside.effects["launch", "it"] == 1
    assert {row["status"] for row in rows} == {"settled"}
    assert bool(Board.told) == ("refused" not in faults.get("press", []))


@pytest.mark.parametrize(
    ("point", "detail", "times"),
    [
        (KillPoint.BEFORE_EFFECT, "messenger post", 1),
        (KillPoint.BEFORE_EFFECT, "messenger answer", 1),
        (KillPoint.AFTER_EFFECT, "messenger answer", 1),
        (KillPoint.BEFORE_EFFECT, "messenger press", 1),
        (KillPoint.AFTER_EFFECT, "messenger press", 1),
        (KillPoint.BEFORE_EFFECT, "messenger edit", 1),
        (KillPoint.AFTER_EFFECT, "messenger edit", 1),
        (KillPoint.BEFORE_REPORT, "fiber", 1),
        (KillPoint.BEFORE_REPORT, "fiber", 2),
        (KillPoint.BEFORE_REPORT, "fiber", 3),
    ],
)
def test_a_death_between_press_and_effect_changes_neither_who_was_first_nor_what_is_done(
    point: KillPoint, detail: str, times: int
) -> None:
    death = Death(point, of=f"{detail}*", visit=times)

    async def story(chat: Chat) -> Any:
        await asked(chat)
        (approve,), (deny,) = keys("Approve"), keys("Deny")
        assert (await press(chat, approve, "p1", BEN))["accepted"] is True
        assert (await press(chat, deny, "p2"))["accepted"] is True
        return await chat.rest()

    Board.begin()
    visit(story, Pad, script=SCRIPT, kill_when=death)
    assert death.victims
    assert {key: set(told) for key, told in Board.told.items()} == {
        "p1": {"Approved by paper:Ben (8)."},
        "p2": {"Answered already. Approved by paper:Ben (8)."},
    }
    assert outcome().endswith("**Approved by paper:Ben (8).**")
    assert keys() == []
    assert Outside.effects["launch", "it"] == 1
    assert len(Board.thread()) == 2


def places(at: Callable[[str, KillPoint, str], bool] | None = None, **simulation: Any) -> int:
    """The same with whatever dies at a place; how many places there were."""
    seen: list[int] = []

    async def story(chat: Chat) -> Any:
        await asked(chat)
        await press(chat, keys("Approve")[0], "p1", BEN)
        await press(chat, keys("Deny")[0] if keys("Deny") else "perdure:x:1", "p2")
        rows = await chat.rest()
        seen.append(chat.laboratory.simulation.visit_count)
        return rows

    Board.begin()
    visit(story, Pad, script=SCRIPT, **simulation)
    assert Outside.effects["launch", "it"] == 1
    assert Board.told["p1"][0] == "Approved by paper:Ben (8)."
    assert keys() == [] or any(each.startswith(NOTE) for each in Board.thread())
    return seen[0]


@pytest.mark.parametrize("offset", range(3))
def test_wherever_a_process_dies_the_first_press_counts_once(offset: int) -> None:
    count = places()
    for place in range(1 + 7 * offset, count + 1, 21):
        places(kill_at=place)


class Forgetful(Pad):
    delivery = Delivery(kept_max=1)


def test_an_open_question_outlives_what_is_forgotten() -> None:
    async def story(chat: Chat) -> Any:
        await asked(chat)
        for number in range(5):
            await chat.do("receive", said(f"story {number}"))
            await chat.until(lambda number=number: sum("Once" in each for each in Board.thread()) > number)
        await press(chat, keys("Approve")[0])
        return await chat.rest()

    Board.begin()
    visit(
        story, Forgetful, script=Script(questions=(*SCRIPT.questions, ScriptedQuestion(asks="story", concludes="Once")))
    )
    assert Board.told == {"p1": ["Approved by paper:Ada L. (7)."]}
    assert Outside.effects["launch", "it"] == 1
