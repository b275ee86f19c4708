"""A conversation outgrows its model's window: it is summarised for the model, durably, and stays whole for people."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Any, ClassVar

import pytest
from pydantic_ai.exceptions import ModelHTTPError

from perdure import ChatRecovery, ContextOverflow, tool
from perdure.actors import ChatAgent
from perdure.actors.events.observability import ObservedEvent, subscribe
from tests.actors.chat.narrow import REFUSED, Ahead, Drill, DrillAhead, Miner, Mute, Narrow, Stubborn, old_talk
from tests.actors.chat.room import Room, Story, outcomes, texts, visit


def heard(agent: type[ChatAgent], story: Story, **simulation: Any) -> list[dict[str, Any]]:
    """Play a story, and return what was told of compactions."""
    events: list[ObservedEvent] = []
    forget = subscribe("chat", events.append)
    try:
        visit(agent, story, **simulation)
    finally:
        forget()
    return [dict(each.payload) for each in events if each.type == "chat:context:compacted"]


async def filled(room: Room, turns: int = 8) -> None:
    await room.do("add_messages", old_talk(turns))


@pytest.mark.shows(chat_recovery="C-0840 C-0846 C-0847 C-0851")
@pytest.mark.parametrize("method", ["chat", "save_messages"])
@pytest.mark.parametrize("half", ["", "Half a word"])
def test_a_refused_request_is_sent_again_with_a_summary(method: str, half: str) -> None:
    """The refusal may come in the midst of the answer; what was said by then is withdrawn."""
    Narrow.begin(says_before_refusal=half)

    async def story(room: Room) -> None:
        await filled(room)
        result = await room.do(method, "hello", request_id="asked")
        assert result.text == "Answer to hello."
        assert texts(result.message) == ["Answer to hello."]
        shown = await room.do("get_messages")
        assert shown[:-2] == old_talk()
        assert (await room.do("inspect_turn", "asked"))["status"] == "completed"

    assert heard(Miner, story) == [{"requestId": "asked", "reason": "reactive", "shortened": True, "attempt": 1}]
    assert (len(Narrow.summaries), Narrow.refusals, len(Narrow.requests)) == (1, 1, 1)
    (sent,) = Narrow.requests
    assert "summary 1" in sent
    assert "user 0" not in sent
    assert sent.count("assistant 7") == 1
    assert "User: user 0" in Narrow.summaries[0]
    assert "assistant 7" not in Narrow.summaries[0]


@pytest.mark.shows(chat_recovery="C-0506 C-1057")
def test_later_turns_and_later_lives_go_on_with_the_summary() -> None:
    Narrow.begin()

    async def story(room: Room) -> None:
        await filled(room)
        assert (await room.do("chat", "one")).ok
        await room.sleep()
        assert (await room.do("chat", "two")).ok

    heard(Miner, story)
    assert (len(Narrow.summaries), Narrow.refusals) == (1, 1)
    first, second = Narrow.requests
    assert second.startswith(first), "a provider may keep what it has read"
    assert second.endswith("user-prompt: two")


def test_a_conversation_that_grows_on_is_summarised_with_its_summary() -> None:
    Narrow.begin()

    async def story(room: Room) -> None:
        await filled(room)
        assert (await room.do("chat", "one")).ok
        await room.do("add_messages", [{**each, "id": f"later-{each['id']}"} for each in old_talk()])
        assert (await room.do("chat", "two")).ok

    told = heard(Miner, story)
    assert [each["shortened"] for each in told] == [True, True]
    assert "summary 1" in Narrow.summaries[1]
    assert "summary 2" in Narrow.requests[-1]
    assert "summary 1" not in Narrow.requests[-1]


@pytest.mark.shows(chat_recovery="C-0841 C-0842 C-0843 C-1058")
@pytest.mark.parametrize(
    ("agent", "window", "summaries", "refusals", "told"),
    [
        (Stubborn, 2_000, 0, 1, []),
        (Mute, 2_000, 1, 1, [False]),
        (Miner, 100, 1, 2, [True]),
    ],
)
def test_a_turn_whose_conversation_stays_too_long_ends_in_an_error(
    agent: type[ChatAgent], window: float, summaries: int, refusals: int, told: list[bool]
) -> None:
    """Compaction is off, or there is no summary, or it does not help: the turn makes one try and no more."""
    Narrow.begin(window)

    async def story(room: Room) -> None:
        await filled(room)
        result, listener = await room.follow("chat", "hello")
        assert result.status == "error"
        assert result.reason == "context_overflow"
        assert ("shown" if agent is Mute else "too long for this model") in result.error
        assert listener.ends == ["on_error"]

    assert [each["shortened"] for each in heard(agent, story)] == told
    assert (len(Narrow.summaries), Narrow.refusals) == (summaries, refusals)


def test_there_may_be_nothing_to_leave_out() -> None:
    Narrow.begin(window=10)

    async def story(room: Room) -> None:
        assert (await room.do("chat", "a question that is longer")).reason == "context_overflow"

    assert [each["shortened"] for each in heard(Miner, story)] == [False]
    assert not Narrow.summaries


@pytest.mark.shows(chat_recovery="C-0844 C-0845")
def test_a_turn_that_is_cancelled_meanwhile_keeps_no_summary() -> None:
    Narrow.begin(summary_s=60)

    async def story(room: Room) -> None:
        await filled(room)
        asked = room.soon("chat", "hello", request_id="asked")
        await room.until(lambda: Narrow.summaries)
        assert await room.do("cancel_chat", "asked")
        assert (await asked).status == "aborted"
        Narrow.begin()
        assert (await room.do("chat", "again")).ok

    assert [each["shortened"] for each in heard(Miner, story)] == [True]
    assert (len(Narrow.summaries), Narrow.refusals) == (1, 1)


@pytest.mark.shows(chat_recovery="C-0853")
@pytest.mark.parametrize("agent", [Miner, Ahead, Drill, DrillAhead])
def test_an_answer_of_many_steps_is_cut_between_two_of_them(agent: type[ChatAgent]) -> None:
    """The question stays as it is, a call keeps its result, and no new call takes the id of one that is not sent any more."""
    Narrow.begin()
    is_ahead = issubclass(agent, (Ahead, DrillAhead))

    async def story(room: Room) -> None:
        result = await room.do("chat", "dig 16" if is_ahead else "dig 9", request_id="asked")
        assert result.ok, result
        parts = [part for part in result.message["parts"] if "toolCallId" in part]
        assert [part["input"]["number"] for part in parts] == list(range(1, len(parts) + 1))
        assert len({part["toolCallId"] for part in parts}) == len(parts)
        assert {part["state"] for part in parts} == {"output-available"}
        await room.sleep()
        assert (await room.do("chat", "and now?")).ok

    told = heard(agent, story)
    assert {each["reason"] for each in told} == {"proactive" if is_ahead else "reactive"}
    assert all(each["shortened"] for each in told)
    assert (len(told) > 3, Narrow.refusals) == ((True, 0) if is_ahead else (False, 1))
    assert all("dig 9" in each or "dig 16" in each for each in Narrow.requests)
    assert "ore 1 " in Narrow.summaries[0]
    sent = next(each for each in Narrow.requests if "summary 1" in each)
    assert not {*re.findall(r"ore \d+ ", Narrow.summaries[0])} & {*re.findall(r"ore \d+ ", sent)}, (
        "nothing is told twice"
    )


@pytest.mark.parametrize("agent", [Miner, Drill])
def test_an_answer_that_a_summary_covers_in_part_can_be_continued(agent: type[ChatAgent]) -> None:
    Narrow.begin()

    async def story(room: Room) -> None:
        first = await room.do("chat", "dig 9")
        assert first.ok
        Narrow.requests.clear()
        result = await room.do("continue_last_turn")
        assert (result.status, result.message["id"]) == ("completed", first.message["id"]), result
        assert result.message["parts"][: len(first.message["parts"])] == first.message["parts"]

    assert [each["shortened"] for each in heard(agent, story)] == [True]
    (sent,) = Narrow.requests
    assert "summary 1" in sent
    assert [f"ore {number} " in sent for number in (1, 9)] == [False, True]


@pytest.mark.parametrize("agent", [Miner, Ahead, Drill, DrillAhead])
def test_no_call_takes_the_id_of_a_call_of_an_earlier_turn(agent: type[ChatAgent]) -> None:
    """This model gives every call the same one; whether the earlier calls are still told, or in a summary."""
    Narrow.begin(window=100_000)

    async def story(room: Room) -> None:
        for word in ("dig 6", "dig 8", "dig 10"):
            assert (await room.do("chat", word)).ok
        calls = [part for each in await room.do("get_messages") for part in each["parts"] if "toolCallId" in part]
        assert {part["state"] for part in calls} == {"output-available"}
        assert len(calls) == len({part["toolCallId"] for part in calls}) >= 10

    assert bool(heard(agent, story)) is issubclass(agent, (Ahead, DrillAhead))


@pytest.mark.shows(chat_recovery="C-0852 C-1059")
def test_a_conversation_is_made_shorter_before_it_is_refused() -> None:
    Narrow.begin()

    async def story(room: Room) -> None:
        await filled(room, 3)
        assert (await room.do("chat", "hello", request_id="asked")).ok

    told = heard(Ahead, story)
    assert told == [{"requestId": "asked", "reason": "proactive", "shortened": True, "attempt": 0}]
    assert (len(Narrow.summaries), Narrow.refusals) == (1, 0)


@pytest.mark.parametrize("agent", [Miner, Ahead, Drill, DrillAhead])
def test_what_a_person_said_in_the_answer_is_told_all_the_same(agent: type[ChatAgent]) -> None:
    """As the question is: the steps before and after it are summarised, and the model goes by what was said last."""
    Narrow.begin()

    async def story(room: Room) -> None:
        asking = room.soon("chat", "dig 7", request_id="asked")
        await room.until(lambda: Narrow.summaries)
        assert (await room.do("steer", "dig 11"))["steered"] == "asked"
        result = await asking
        assert result.text == "Answer to dig 11."
        assert [part["input"]["number"] for part in result.message["parts"] if "toolCallId" in part] == [*range(1, 12)]

    told = heard(agent, story)
    assert any(each["shortened"] for each in told)
    assert [request.count("user-prompt: dig 11") for request in Narrow.requests[-4:]] == [1, 1, 1, 1]


class Roomy(Miner):
    """Makes the conversation shorter late."""

    context_overflow = ContextOverflow(keep_tokens=150, max_input_tokens=1_500)


@pytest.mark.parametrize(("turns", "shortened"), [(9, []), (3, [True])])
def test_what_the_provider_has_counted_corrects_the_next_estimate_unless_the_request_was_short(
    turns: int, shortened: list[bool]
) -> None:
    """This model counts far fewer tokens than are estimated. Most of a short request may be tools and instructions."""
    Narrow.begin(window=100_000)

    async def story(room: Room) -> None:
        await filled(room, turns)
        assert (await room.do("chat", "one")).ok
        await room.do("add_messages", [{**each, "id": f"later-{each['id']}"} for each in old_talk(13 - turns)])
        assert (await room.do("chat", "two")).ok

    assert [each["shortened"] for each in heard(Roomy, story)] == shortened


class Wordy(Ahead):
    """Its summary is shorter than the conversation, and too long all the same."""

    async def summarize_messages(self, messages: list[dict[str, Any]]) -> str | None:
        """Hardly shorter."""
        Narrow.summaries.append("")
        return "word " * 300


def test_what_a_summary_has_made_too_little_shorter_is_not_summarised_again_in_the_same_turn() -> None:
    Narrow.begin(window=100_000)

    async def story(room: Room) -> None:
        await filled(room, 40)
        assert (await room.do("chat", "dig 3", request_id="asked")).ok
        assert len(Narrow.requests) == 4

    assert [(each["reason"], each["shortened"]) for each in heard(Wordy, story)] == [("proactive", True)]


class Reluctant(Ahead):
    """Refuses its first summary."""

    async def summarize_messages(self, messages: list[dict[str, Any]]) -> str | None:
        """Nothing the first time."""
        Narrow.summaries.append("")
        return None if len(Narrow.summaries) == 1 else "in short"


@pytest.mark.shows(chat_recovery="C-0854")
def test_what_was_tried_ahead_in_vain_is_tried_after_a_refusal_once_more() -> None:
    Narrow.begin()

    async def story(room: Room) -> None:
        await filled(room)
        result = await room.do("chat", "dig 2", request_id="asked")
        assert result.text.startswith("Answer to")

    told = heard(Reluctant, story)
    assert [(each["reason"], each["shortened"]) for each in told] == [("proactive", False), ("reactive", True)]


class Torn(Ahead):
    """Fails at its summaries."""

    async def summarize_messages(self, messages: list[dict[str, Any]]) -> str | None:
        """Never."""
        raise RuntimeError("no pen")


def test_authors_code_that_fails_at_a_summary_is_told_in_the_log_and_the_turn_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    Narrow.begin(window=100_000)

    async def story(room: Room) -> None:
        await filled(room)
        assert (await room.do("chat", "hello", request_id="asked")).ok

    with caplog.at_level(logging.WARNING):
        told = heard(Torn, story)
    assert [(each["reason"], each["shortened"]) for each in told] == [("proactive", False)]
    assert "summarize_messages" in caplog.text
    assert "no pen" in caplog.text


class Both(Miner):
    """Makes the conversation shorter ahead of need, and keeps more of it than the provider takes."""

    context_overflow = ContextOverflow(keep_tokens=300, max_input_tokens=400)


@pytest.mark.shows(chat_recovery="C-0850")
def test_what_was_made_shorter_ahead_and_is_refused_all_the_same_is_made_shorter_still() -> None:
    Narrow.begin(window=1_000)

    async def story(room: Room) -> None:
        await filled(room)
        result = await room.do("chat", "hello", request_id="asked")
        assert (result.status, texts(result.message)) == ("completed", ["Answer to hello."])
        assert (await room.do("get_messages"))[:-2] == old_talk()

    told = heard(Both, story)
    assert [(each["reason"], each["shortened"]) for each in told] == [("proactive", True), ("reactive", True)]
    assert (len(Narrow.summaries), Narrow.refusals, len(Narrow.requests)) == (2, 1, 1)
    assert "summary 1" in Narrow.summaries[1], "the second one tells what the first one told"
    assert "summary 2" in Narrow.requests[0]


class Watched(Miner):
    """Is asked whether to go on."""

    looks: ClassVar[list[tuple[int, int]]] = []
    chat_recovery = ChatRecovery(
        max_attempts=1, should_keep_recovering=lambda each: Watched.looks.append((each.attempt, each.work))
    )
    chat_stream_stall_timeout_ms = 40_000


@pytest.mark.shows(chat_recovery="C-0573 C-1067")
def test_a_summary_takes_nothing_from_the_progress_of_a_turn_that_is_being_recovered() -> None:
    """It is interrupted three times, twice before it outgrows its model and once after; each time it has dug on (C-1067)."""
    Narrow.begin()
    Narrow.stalls = [2, 4, 8]
    Watched.looks.clear()

    async def story(room: Room) -> None:
        result = await room.do("chat", "dig 9", request_id="asked")
        assert result.ok, result
        parts = [part for part in result.message["parts"] if "toolCallId" in part]
        assert [part["input"]["number"] for part in parts] == list(range(1, 10))

    assert [each["shortened"] for each in heard(Watched, story)] == [True]
    assert [attempt for attempt, _ in Watched.looks] == [1] * len(Watched.looks)
    (_, before), (_, after) = Watched.looks[-2:]
    assert after >= before + 4, Watched.looks


class Launcher(Miner):
    """Launches something, at most once, in its own process."""

    launched: ClassVar[list[str]] = []
    context_overflow = ContextOverflow(keep_tokens=20)

    @tool
    async def launch(self) -> str:
        """Launch it."""
        self.launched.append("it")
        await asyncio.sleep(60)
        return "launched"


@pytest.mark.shows(transport_recovery="A4")
def test_a_call_whose_outcome_is_unknown_is_not_made_again_by_a_model_that_has_only_a_summary_of_it() -> None:
    """What is summarised has the caution, and the guard does not depend on what the model is told (A4)."""
    Narrow.begin(window=100_000)
    Launcher.launched.clear()

    async def story(room: Room) -> None:
        await filled(room)
        first = room.soon("chat", "launch it", request_id="first")
        await room.until(lambda: Launcher.launched)
        room.kill()
        assert (await first).ok
        Narrow.begin()
        result = await room.do("chat", "launch again")
        assert result.ok, result
        ((state, words),) = outcomes(result.message)
        assert (state, words[:8]) == ("output-error", "NOT RUN:")

    assert [each["shortened"] for each in heard(Launcher, story)] == [True]
    assert "Assistant called launch({}): it failed: OUTCOME UNKNOWN" in Narrow.summaries[0]
    assert "OUTCOME UNKNOWN" not in Narrow.requests[0]
    assert Launcher.launched == ["it"]


EDITS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any]]] = {
    "a covered message is deleted": ("delete_messages", (["u1"],), {}),
    "a covered message gets other content": (
        "add_messages",
        ([{**old_talk()[2], "parts": [{"type": "text", "text": "no"}]}],),
        {},
    ),
    "a covered message and all that follow are replaced": ("chat", ("hello",), {"instead_of": "u1"}),
    "the same, and the old ones are kept": ("chat", ("hello",), {"instead_of": "u1", "keep": True}),
    "a covered answer is given again": ("regenerate", (), {"instead_of": "a1"}),
    "everything is deleted": ("clear", (), {}),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_of_what_a_summary_covers_ends_it(edit: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
    Narrow.begin()
    method, args, options = edit

    async def story(room: Room) -> None:
        await filled(room)
        assert (await room.do("chat", "one")).ok
        Narrow.begin(window=100_000)
        await room.do(method, *args, **options)
        assert (await room.do("chat", "two")).ok

    heard(Miner, story)
    assert all("summary 1" not in each for each in Narrow.requests)
    assert not Narrow.summaries
    assert ("user 0" in Narrow.requests[-1]) is (method != "clear")


def test_an_edit_of_what_a_summary_does_not_cover_leaves_it() -> None:
    Narrow.begin()

    async def story(room: Room) -> None:
        await filled(room)
        assert (await room.do("chat", "one", request_id="one")).ok
        assert (await room.do("chat", "two", instead_of="one-0")).ok
        assert await room.do("delete_messages", ["a7"]) == 1
        assert (await room.do("chat", "three")).ok

    heard(Miner, story)
    assert (len(Narrow.summaries), Narrow.refusals) == (1, 1)
    assert all("summary 1" in each for each in Narrow.requests)
    assert "assistant 7" not in Narrow.requests[-1]


def test_a_summary_of_what_was_edited_meanwhile_is_asked_for_again() -> None:
    Narrow.begin(summary_s=10)

    async def story(room: Room) -> None:
        await filled(room)
        asked = room.soon("chat", "hello")
        await room.until(lambda: Narrow.summaries)
        assert await room.do("delete_messages", ["u0"]) == 1
        assert (await asked).ok

    assert [each["shortened"] for each in heard(Miner, story)] == [True]
    assert ["user 0" in each for each in Narrow.summaries] == [True, False]


def test_an_agent_of_the_library_reads_a_summary_too() -> None:
    """Of what came before its turn; its own steps are told after it."""
    Narrow.begin(window=2_400)

    async def story(room: Room) -> None:
        await filled(room)
        result = await room.do("chat", "dig 3", request_id="asked")
        assert result.ok, result
        assert len([part for part in result.message["parts"] if "toolCallId" in part]) == 3
        await room.sleep()
        assert (await room.do("chat", "and now?")).ok

    assert [each["shortened"] for each in heard(Drill, story)] == [True]
    assert "summary 1" in Narrow.requests[-1]
    assert Narrow.requests[-1].count("tool-return: ore") == 3


TOO_MANY = ModelHTTPError(429, "narrow", {"error": {"message": "Slow down."}})
TOO_LONG = ModelHTTPError(400, "narrow", REFUSED)


@pytest.mark.parametrize(
    ("problems", "asked"),
    [
        ([TOO_MANY, TOO_MANY], 3),
        ([TOO_LONG, TOO_LONG], 3),
        ([TOO_LONG, TOO_LONG, TOO_LONG], 3),
        ([TOO_MANY] * 5, 5),
        ([ModelHTTPError(401, "narrow")], 1),
    ],
)
def test_a_summary_is_asked_for_with_patience_and_in_ever_shorter_words(problems: list[Exception], asked: int) -> None:
    """A request that may pass later is repeated, five in all; one that is too long is asked with less of each text."""
    Narrow.begin()
    Narrow.summary_problems = [*problems]
    fails = asked == len(problems)

    async def story(room: Room) -> None:
        talk = old_talk()
        talk[0]["parts"][0]["text"] += "word " * 1_000
        await room.do("add_messages", talk)
        began_s = asyncio.get_running_loop().time()
        result = await room.do("chat", "hello")
        assert result.ok is not fails
        took_s = asyncio.get_running_loop().time() - began_s - asked * Narrow.summary_s
        waits = sum(each is TOO_MANY for each in problems[: asked - 1])
        assert waits <= took_s < 1 + 10 * waits, "after each request that may pass later"

    assert [each["shortened"] for each in heard(Miner, story)] == [not fails]
    lengths = [len(each) for each in Narrow.summaries]
    assert len(lengths) == asked
    assert (lengths == sorted(set(lengths), reverse=True)) is (TOO_LONG in problems or asked == 1)


def test_a_summary_that_does_not_come_is_given_up_and_asked_for_again() -> None:
    Narrow.begin(summary_s=3_000)

    class_limit = 5_000

    async def story(room: Room) -> None:
        await filled(room)
        asked = room.soon("chat", "hello", chat_stream_stall_timeout_ms=class_limit)
        await room.until(lambda: Narrow.summaries)
        Narrow.summary_s = 0
        assert (await asked).ok

    heard(Miner, story)
    assert len(Narrow.summaries) == 2


@pytest.mark.shows(chat_recovery="C-0806")
def test_a_turn_that_waits_for_a_person_goes_on_though_it_was_summarised_meanwhile() -> None:
    """The answer comes into its own message, and the model reads it, in this turn and in the next one."""
    Narrow.begin()

    async def story(room: Room) -> None:
        first = room.soon("chat", "ask", request_id="asked", follow=True)
        await room.until(lambda: room.is_("parked"))
        await filled(room)
        assert (await room.do("chat", "hello")).ok
        assert await room.do("resolve_tool_call", "question", "yes, please")
        assert (await first).ok
        assert "tool-return: yes, please" in Narrow.requests[-1]
        assert (await room.do("chat", "and now?")).ok

    assert [each["shortened"] for each in heard(Miner, story)] == [True, True]
    assert "Assistant called ask_user({}): there is no result yet" in Narrow.summaries[0]
    assert "Assistant called ask_user({}): yes, please" in Narrow.summaries[1]


@pytest.mark.thorough
@pytest.mark.parametrize("agent", [Miner, Drill])
def test_no_place_of_a_death_leaves_half_a_compaction(agent: type[ChatAgent]) -> None:
    """Wherever a process dies while an answer of many steps is compacted: the answer comes whole, and the next turn reads the summary."""
    Narrow.begin()
    places = _dug(agent, 0)
    assert places > 60
    for place in range(1, places + 1, 3):
        Narrow.begin()
        _dug(agent, place)


def _dug(agent: type[ChatAgent], kill_at: int) -> int:
    visits: list[int] = []

    async def story(room: Room) -> None:
        result = await room.do("chat", "dig 8", request_id="asked")
        assert result.ok, f"kill_at={kill_at}: {result}"
        numbers = [part["input"]["number"] for part in result.message["parts"] if "toolCallId" in part]
        assert numbers == list(range(1, len(numbers) + 1)), f"kill_at={kill_at}: {numbers}"
        assert (await room.do("chat", "and now?")).ok
        assert "summary" in Narrow.requests[-1], f"kill_at={kill_at}"
        visits.append(room.laboratory.simulation.visit_count)

    visit(agent, story, kill_at=kill_at)
    return visits[0]
