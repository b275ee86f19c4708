"""What people see of an answer: as it grows, in order, whole in the end, and what becomes of it when the provider of messages fails."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from perdure.actors import Messenger, exposed
from perdure.policies import Delivery
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace
from tests.actors.chat.desk import Outside
from tests.actors.messenger.paper import LIMIT, Board, Bot, Chat, Paper, answer_to, said, visit

P = Delivery()
SLOW = Pace(first_ms=300, between_ms=100)
TOLD = answer_to("story")
REFUSED = Fault(
    kind=FaultKind.STATUS, status=401, type="invalid_request_error", message="a key of ours, which nobody may see"
)


async def asked(chat: Chat) -> list[dict[str, Any]]:
    """One question, and what came of it."""
    await chat.hear("a story please")
    return await chat.rest()


def outcomes(rows: list[dict[str, Any]]) -> list[str]:
    return [row["outcome"] or row["status"] for row in rows]


class Unhurried(Bot):
    """Its model may think for a minute."""

    chat_stream_stall_timeout_ms = 60_000


# ---------------------------------------------------------------- answers


@pytest.mark.shows(chat_recovery="C-0726", messenger="M38 M73")
def test_an_answer_grows_in_one_message_and_is_whole_in_the_end() -> None:
    """M38, M74: nothing is posted before there is something to read; edits keep their pace; the last one is the answer."""
    Board.begin()
    (row,), heard = visit(asked, pace=SLOW)
    (said_so_far,) = Board.history()
    assert said_so_far[-1] == TOLD
    assert len(said_so_far) > 3
    assert all(later != earlier for earlier, later in itertools.pairwise(said_so_far)), "nothing is sent twice"
    assert all(TOLD.startswith(each) and each for each in said_so_far)
    edits = [at_s for at_s, what, _ in Board.requests if what == "edit"]
    assert min(later - earlier for earlier, later in itertools.pairwise(edits[:-1])) >= 0.2
    assert row["posts"][0]["intended"] == row["posts"][0]["acknowledged"] != ""
    assert row["stage"] == "completed"
    assert heard[1].payload["requestId"] == row["request_id"] != "", "M73: whose answer it is"
    assert [event.type for event in heard] == [
        f"messenger:{each}" for each in ("accepted", "turn", "posted", "settled")
    ]


@pytest.mark.shows(chat_recovery="C-0725 C-0728", messenger="M37 M40 M74")
@pytest.mark.parametrize("fates", [[], ["unreached"] * 2, ["ok"] + ["unreached"] * 2])
def test_a_long_answer_is_several_messages_in_order_and_none_is_too_long(fates: list[str]) -> None:
    """M37, M40; also where a post fails for a while. Else each grows while the answer does."""

    async def story(chat: Chat) -> Any:
        await chat.hear("a long one")
        return await chat.rest()

    Board.begin(post=fates)
    visit(story, pace=SLOW)
    assert "".join(Board.thread()) == answer_to("long")
    assert fates or min(len(each) for each in Board.history()[:3]) > 1
    assert len(Board.thread()) > 3
    assert all(len(each) <= LIMIT for said_so_far in Board.history() for each in said_so_far)


def test_how_far_a_reply_is_is_told_while_it_is_under_way() -> None:
    seen: list[list[tuple[str, str]]] = []

    async def story(chat: Chat) -> Any:
        async def look() -> None:
            seen.append([(row["status"], row["stage"]) for row in await chat.rows()])

        await chat.hear("a story please")
        await chat.until(lambda: len(Outside.provider.log()) == 1)
        await chat.hear("one short")
        await look()
        await chat.until(lambda: bool(Board.thread()))
        await look()
        await chat.rest()
        await look()

    Board.begin()
    visit(story, pace=SLOW)
    assert seen == [
        [("running", "accepted"), ("waiting", "accepted")],
        [("running", "streaming"), ("waiting", "accepted")],
        [("settled", "completed"), ("settled", "completed")],
    ]


def test_an_answer_without_words_gets_words_of_ours_and_an_outcome_of_its_own() -> None:
    async def story(chat: Chat) -> Any:
        await chat.hear("silence")
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story)
    assert (outcomes(rows), Board.thread()) == (["empty"], [P.empty_text])


@pytest.mark.shows(chat_recovery="C-0729", messenger="M41 M75")
@pytest.mark.parametrize(
    ("fault", "outcome", "ends_with"),
    [
        (REFUSED, "failed", P.error_text),
        (
            Fault(kind=FaultKind.ERROR, event=9, code=None, type="invalid_request_error", message="enough"),
            "apologised",
            P.interrupted_text,
        ),
    ],
)
def test_a_turn_that_fails_is_told_without_anything_of_the_inside(fault: Fault, outcome: str, ends_with: str) -> None:
    """M41, M71, M75, weakness 46: with what was said so far, if there was something, and an apology."""
    Board.begin()
    rows, _ = visit(asked, plan=FaultPlan.at({1: fault}), pace=SLOW)
    (shown,) = Board.thread()
    assert outcomes(rows) == [outcome]
    assert shown.endswith(ends_with)
    assert shown.startswith("Once upon") == (outcome == "apologised")
    assert "key of ours" not in shown
    assert "enough" not in shown
    assert rows[0]["problem"]


@pytest.mark.shows(messenger="weakness-49 case-20")
def test_what_cannot_be_shown_as_typing_is_answered_all_the_same() -> None:
    """Case 20 of §13.7, weakness 49."""
    Board.begin(typing=["refused"] * 9)
    rows, _ = visit(asked, pace=SLOW)
    assert (outcomes(rows), Board.thread()) == (["answered"], [TOLD])
    assert any(what == "typing" for _, what, _ in Board.requests)


@pytest.mark.parametrize("slow_s", [0.01, 60])
def test_typing_is_shown_every_four_seconds_until_there_is_something_to_read(slow_s: float) -> None:
    """A request that hangs is given up, and made again."""
    Board.begin()

    async def story(chat: Chat) -> list[dict[str, Any]]:
        Board.slow_s = slow_s
        await chat.hear("a story please")
        await chat.until(lambda: len(Board.requests) == 5)
        Board.slow_s = 0.01
        return await chat.rest()

    rows, _ = visit(story, pace=Pace(first_ms=30_000, between_ms=100), agent=Unhurried)
    assert (outcomes(rows), Board.thread()) == (["answered"], [TOLD])
    shown = [at_s for at_s, what, _ in Board.requests if what == "typing"]
    posted = next(at_s for at_s, what, _ in Board.requests if what == "post")
    assert [round(later - earlier, 1) for earlier, later in itertools.pairwise([*shown, posted])][:-1] == [4.0] * 7
    assert posted - shown[-1] < 4.1


def test_typing_is_not_shown_any_more_while_a_whole_answer_waits_for_the_provider() -> None:
    Board.begin(post=["busy"] * 5)
    rows, _ = visit(asked)
    assert (outcomes(rows), Board.thread()) == (["answered"], [TOLD])
    posts = [at_s for at_s, what, _ in Board.requests if what == "post"]
    assert posts[-1] - posts[0] >= 12
    assert [what for at_s, what, _ in Board.requests if at_s > posts[0]] == ["post"] * 5


# ---------------------------------------------------------------- the provider fails


@pytest.mark.shows(messenger="weakness-54")
@pytest.mark.parametrize(
    ("faults", "count"),
    [
        ({"post": ["busy", "unreached", "busy"]}, 1),
        ({"edit": ["busy", "unreached", "lost", "silent"]}, 1),
        ({"edit": ["gone"]}, 2),
    ],
)
def test_requests_that_fail_for_a_while_are_made_again(faults: dict[str, list[str]], count: int) -> None:
    """Weakness 54: after the pause that the provider asks for, or a growing one. A message that somebody took away is posted anew."""
    Board.begin(**faults)
    rows, _ = visit(asked, pace=SLOW)
    assert outcomes(rows) == ["answered"]
    assert len(Board.thread()) == count
    assert Board.thread()[-1] == TOLD


@pytest.mark.parametrize(("fate", "count"), [("silent", 2), ("lost", 1)])
def test_a_post_without_a_reply_is_repeated_and_says_that_it_may_stand_there_twice(fate: str, count: int) -> None:
    """*Sent, no reply seen*: nobody can tell these two apart, so both get the whole answer, with words of apology above it."""
    Board.begin(post=[fate])
    rows, heard = visit(asked, pace=SLOW)
    assert outcomes(rows) == ["answered"]
    assert len(Board.thread()) == count
    assert Board.thread()[-1] == f"{P.repeated_text}\n\n{TOLD}"
    assert sum(TOLD in each for each in Board.thread()) == 1, "what stands there twice is a beginning, never an answer"
    assert "messenger:post:unknown" in [event.type for event in heard]


class Silent(Bot):
    """Repeats without a word."""

    delivery: ClassVar[Delivery] = Delivery(unknown="repeat")


class Careful(Bot):
    """Leaves what may have arrived to a person."""

    delivery: ClassVar[Delivery] = Delivery(unknown="leave")


def test_the_policy_says_what_becomes_of_a_post_without_a_reply() -> None:
    Board.begin(post=["silent"])
    rows, _ = visit(asked, Silent, pace=SLOW)
    assert (outcomes(rows), Board.thread()[-1]) == (["answered"], TOLD)
    Board.begin(post=["lost"])
    rows, _ = visit(asked, Careful, pace=SLOW)
    assert (outcomes(rows), Board.thread()) == (["parked"], [])
    assert "nobody knows whether it arrived" in rows[0]["problem"]


def test_an_edit_without_a_reply_is_repeated_whatever_the_policy_says_of_posts() -> None:
    Board.begin(edit=["lost", "silent"] * 3)
    rows, _ = visit(asked, Careful, pace=SLOW)
    assert (outcomes(rows), Board.thread()) == (["answered"], [TOLD])


@pytest.mark.shows(chat_recovery="C-0730", messenger="M42 weakness-48")
@pytest.mark.parametrize("fate", ["refused", "bug"])
def test_what_cannot_be_delivered_is_parked_in_nobodys_way_and_can_be_tried_again(fate: str) -> None:
    """M42, weakness 48: the model is not asked again, and what comes after it is answered meanwhile."""

    async def story(chat: Chat) -> Any:
        await chat.hear("a story please")
        await chat.hear("one short", key="2")
        parked, answered = await chat.rest()
        assert (parked["status"], answered["outcome"]) == ("parked", "answered")
        assert parked["problem"]
        assert [each["reply_id"] for each in await chat.rows("parked")] == [parked["reply_id"]]
        assert await chat.do("retry_delivery", parked["reply_id"]) is True
        assert await chat.do("retry_delivery", parked["reply_id"]) is False
        assert await chat.do("retry_delivery", "nothing") is False
        return await chat.rest()

    Board.begin(post=[fate] * 2)  # while it streams, and in the end
    rows, _ = visit(story, pace=Pace(first_ms=100, between_ms=10))
    assert outcomes(rows) == ["answered", "answered"]
    assert Board.thread() == [answer_to("short"), TOLD]
    assert len(Outside.provider.log()) == 2


def test_a_notice_that_could_not_be_posted_is_posted_in_its_turn_when_it_is_tried_again() -> None:
    async def story(chat: Chat) -> Any:
        notice = await chat.do("deliver_notice", "Soon we close.", "t")
        await chat.rest()
        assert outcomes(await chat.rows()) == ["parked"]
        assert await chat.do("retry_delivery", notice) is True
        await chat.hear("one short")
        return await chat.rest()

    Board.begin(post=["refused"])
    rows, _ = visit(story)
    assert (outcomes(rows), Board.thread()) == (["answered"] * 2, ["Soon we close.", answer_to("short")])


def test_a_provider_that_stays_away_parks_the_reply_after_so_many_tries() -> None:
    Board.begin(post=["unreached"] * 99)
    rows, _ = visit(asked)
    assert outcomes(rows) == ["parked"]
    assert sum(what == "post" for _, what, _ in Board.requests) == P.tries_max + 1


def test_failures_in_a_row_are_counted_on_by_the_life_after_a_death() -> None:
    async def story(chat: Chat) -> Any:
        await chat.hear("a story please")
        await chat.until(lambda: sum(what == "post" for _, what, _ in Board.requests) == P.tries_max - 2)
        await asyncio.sleep(0.1)
        chat.kill()
        return await chat.rest()

    Board.begin(post=["unreached"] * 99)
    rows, _ = visit(story)
    assert outcomes(rows) == ["parked"]
    assert sum(what == "post" for _, what, _ in Board.requests) == P.tries_max + 1


class Impatient(Bot):
    """Parks a reply after a few failures in a row."""

    delivery: ClassVar[Delivery] = Delivery(tries_max=3, busy_max=2)


@pytest.mark.parametrize(("fate", "posts"), [("unreached", 4), ("busy", 3)])
def test_a_reply_that_is_tried_again_by_hand_has_all_its_tries_again(fate: str, posts: int) -> None:
    async def story(chat: Chat) -> None:
        await chat.hear("a story please")
        for times in (1, 2):
            (row,) = await chat.rest()
            assert row["status"] == "parked"
            assert sum(what == "post" for _, what, _ in Board.requests) == times * posts
            assert await chat.do("retry_delivery", row["reply_id"]) is True
        assert outcomes(await chat.rest()) == ["answered"]

    Board.begin(post=[fate] * 2 * posts)
    visit(story, Impatient)


@pytest.mark.parametrize(
    ("faults", "outcome"),
    [
        ({"post": ["unreached"] * 3, "edit": ["unreached"] * 3 + ["ok"] + ["unreached"] * 3}, "answered"),
        ({"post": ["busy"] * 2, "edit": ["busy"] * 2 + ["ok"] + ["busy"] * 2}, "answered"),
        ({"post": ["unreached", "busy"] * 2}, "answered"),
        ({"edit": ["ok"] + ["unreached"] * 20}, "parked"),
        ({"edit": ["ok"] + ["busy"] * 40}, "parked"),
        ({"edit": ["busy", "unreached"] * 20}, "parked"),
    ],
)
def test_a_request_that_succeeds_begins_the_count_of_failures_anew(faults: dict[str, list[str]], outcome: str) -> None:
    """Each kind has a count of its own. A failure of the other kind does not begin it anew."""
    Board.begin(**faults)
    Board.busy_ms = 100
    try:
        rows, _ = visit(asked, Impatient, pace=SLOW)
    finally:
        Board.busy_ms = 3_000
    assert outcomes(rows) == [outcome]
    assert outcome == "parked" or Board.thread() == [TOLD]
    assert outcome == "parked" or (rows[0]["tries"], rows[0]["busy"]) == (0, 0)


class Forgetful(Bot):
    """Begins anew after a death."""

    async def on_chat_recovery(self, context: Any) -> dict[str, bool]:
        return {"persist": False}


def test_messages_that_a_shorter_answer_does_not_need_are_taken_away() -> None:
    async def story(chat: Chat) -> Any:
        await chat.hear("a long one")
        await chat.until(lambda: len(Board.thread()) >= 3)
        Outside.provider.script = Outside.provider.script.model_copy(update={"questions": (), "otherwise": "Short."})
        chat.kill()
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story, Forgetful, pace=SLOW)
    assert (outcomes(rows), Board.thread()) == (["answered"], ["Short."])
    assert len(Board.deleted) >= 2


# ---------------------------------------------------------------- cancelling


@pytest.mark.shows(messenger="weakness-45 case-17")
@pytest.mark.parametrize("how", ["reply", "fiber"])
def test_cancelling_stops_the_model_and_the_posts_and_says_so(how: str) -> None:
    """Case 17 of §13.7, weakness 45: by the reply or by its fiber; what was said stays, and is not taken for the answer."""

    async def story(chat: Chat) -> Any:
        await chat.hear("a story please")
        await chat.until(lambda: bool(Board.thread()))
        (row,) = await chat.rows()
        if how == "reply":
            assert await chat.do("cancel_reply", row["reply_id"]) is True
            assert await chat.do("cancel_reply", row["reply_id"]) is False
        else:
            assert await chat.do("stop_fiber", row["fiber_id"]) is True
        rows = await chat.rest()
        assert Outside.provider.counters().open == 0
        fiber = await chat.do("fiber_status", row["fiber_id"])
        return rows, fiber

    Board.begin()
    (rows, fiber), _ = visit(story, Steered, pace=SLOW)
    assert (outcomes(rows), fiber) == (["cancelled"], "aborted")
    (shown,) = Board.thread()
    assert shown.startswith("Once upon")
    assert shown.endswith(P.cancelled_text)
    assert len(shown) < len(TOLD)


def test_a_reply_whose_fiber_was_cancelled_before_a_death_is_brought_to_its_end_by_the_next_life() -> None:
    """Nobody enters the fiber again, so the agent looks for such replies when it comes up."""

    async def story(chat: Chat) -> Any:
        async def is_over() -> bool:
            return bool(await chat.do("fiber_status", row["fiber_id"]) == "aborted")

        await chat.hear("a story please")
        await chat.until(lambda: bool(Board.thread()))
        (row,) = await chat.rows()
        Board.slow_s = 5
        assert await chat.do("stop_fiber", row["fiber_id"]) is True
        await chat.until(is_over)
        chat.kill()
        Board.slow_s = 0.01
        (before,) = await chat.rows()
        assert before["status"] == "running"
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story, Steered, pace=SLOW)
    assert outcomes(rows) == ["cancelled"]
    assert Board.thread()[0].endswith(P.cancelled_text)


class Stuttering(Bot):
    """Cannot say at once who speaks."""

    tries: ClassVar[list[str]] = []

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        def speaker(event: Any) -> str:
            cls.tries.append(event.text)
            if len(cls.tries) < 3:
                raise LookupError("the directory of names is away")
            return "Ada"

        return [Messenger(id="paper", adapter=Paper(), speaker=speaker)]


def test_a_delivery_that_an_error_broke_off_is_tried_again_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story(chat: Chat) -> Any:
        await chat.hear("a story please", is_direct=False)
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story, Stuttering)
    assert (outcomes(rows), Board.thread()) == (["answered"], [TOLD])
    assert Outside.provider.log()[0].body["messages"][-1]["content"] == "Ada: a story please"
    assert "the directory of names is away" in caplog.text


class Steered(Bot):
    """Lets its fibers be steered from outside."""

    @exposed
    async def stop_fiber(self, fiber_id: str) -> bool:
        return self.cancel_fiber(fiber_id)

    @exposed
    async def fiber_status(self, fiber_id: str) -> str:
        found = self.inspect_fiber(fiber_id)
        return "" if found is None else found.status

    @exposed
    async def fiber_end(self, fiber_id: str) -> list[Any]:
        found = self.inspect_fiber(fiber_id)
        return [] if found is None else [found.status, found.error, (found.metadata or {}).get("outcome")]


def test_the_fiber_of_a_reply_ends_with_what_became_of_the_reply() -> None:
    async def story(chat: Chat) -> Any:
        await chat.hear("a story please")
        await chat.hear("one short", key="2")
        rows = await chat.rest()
        return [(row["problem"], await chat.do("fiber_end", row["fiber_id"])) for row in rows]

    Board.begin(post=["refused"] * 2)
    (parked, answered), _ = visit(story, Steered, pace=Pace(first_ms=100, between_ms=10))
    assert parked == ("post is refused", ["error", "post is refused", "parked"])
    assert answered == ("", ["completed", None, "answered"])


@pytest.mark.parametrize("has_begun", [False, True])
def test_of_a_conversation_that_is_cleared_meanwhile_only_what_stands_there_is_marked(has_begun: bool) -> None:
    async def story(chat: Chat) -> Any:
        await chat.hear("a story please")
        if has_begun:
            await chat.until(lambda: bool(Board.thread()))
        else:
            await chat.until(lambda: len(Outside.provider.log()) == 1)
        await chat.do("clear")
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story, pace=Pace(first_ms=1_000, between_ms=100))
    assert outcomes(rows) == ["cancelled"]
    assert [each.endswith(P.cancelled_text) for each in Board.thread()] == [True] * has_begun


def test_a_reply_that_was_cancelled_before_its_turn_never_begins() -> None:
    async def story(chat: Chat) -> Any:
        await chat.hear("a story please")
        await chat.hear("one short", key="2")
        assert await chat.do("cancel_reply", "0000000002") is True
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story, pace=SLOW)
    assert outcomes(rows) == ["answered", "cancelled"]
    assert len(Outside.provider.log()) == 1


# ---------------------------------------------------------------- several at a time


@pytest.mark.shows(messenger="weakness-43 weakness-44 case-15 case-16")
def test_messages_that_come_during_an_answer_all_reach_the_model_and_get_one() -> None:
    """Cases 15 and 16 of §13.7, weaknesses 43 and 44: merged, never dropped, however long the answer before takes."""

    async def story(chat: Chat) -> Any:
        await chat.hear("a story please")
        await asyncio.sleep(20)
        for number, text in enumerate(("first of three", "second of three", "the short third")):
            assert (await chat.hear(text, key=str(number)))["accepted"]
            await asyncio.sleep(10)
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story, pace=Pace(first_ms=30_000, between_ms=1_000), agent=Patient)
    assert outcomes(rows) == ["answered", "answered"]
    assert [len(row["heard"]) for row in rows] == [1, 3]
    asked_for = [each["content"] for each in Outside.provider.log()[1].body["messages"] if each["role"] == "user"]
    assert [text for text in asked_for if "third" in text or "three" in text] == [
        "first of three",
        "second of three",
        "the short third",
    ]
    assert Board.thread() == [TOLD, answer_to("short")]


def test_a_question_behind_a_notice_that_waits_is_no_part_of_the_notice() -> None:
    async def story(chat: Chat) -> Any:
        await chat.hear("a story please")
        await chat.do("deliver_notice", "Soon we close.", "t")
        told = await chat.hear("one short")
        assert (told["accepted"], told["reply"]) == (True, "0000000003")
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story, pace=SLOW)
    assert outcomes(rows) == ["answered"] * 3
    assert Board.thread() == [TOLD, "Soon we close.", answer_to("short")]


def test_a_message_without_words_is_told_to_the_model_as_one() -> None:
    async def story(chat: Chat) -> Any:
        await chat.hear(" \n ", key="blank")
        return await chat.rest()

    Board.begin()
    visit(story)
    assert Outside.provider.log()[0].body["messages"][-1]["content"] == "(nothing that can be shown as text)"


class Patient(Bot):
    """Its model may take its time."""

    chat_stream_stall_timeout_ms = 0


class Waiting(Bot):
    """Waits for what else somebody writes."""

    delivery: ClassVar[Delivery] = Delivery(burst_ms=600, burst_max_ms=3_000)


def test_who_writes_in_pieces_gets_one_answer() -> None:
    async def story(chat: Chat) -> Any:
        for number in range(3):
            await chat.hear(f"short {number}", key=str(number))
            await asyncio.sleep(0.4)
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story, Waiting)
    assert [len(row["heard"]) for row in rows] == [3]
    assert Board.thread() == [answer_to("short")]


class OneForAll(Bot):
    """One agent behind all threads."""

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        return [Messenger(id="paper", adapter=Paper(), conversation=lambda event: "bot")]


@pytest.mark.shows(messenger="weakness-51 case-22")
def test_threads_that_share_an_agent_each_get_their_own_answers() -> None:
    """Case 22 of §13.7, weakness 51."""

    async def story(chat: Chat) -> Any:
        await asyncio.gather(
            *(chat.hear(text, thread=text[-1], key=text) for text in ("short a", "story b", "short a", "long c"))
        )
        return await chat.rest()

    Board.begin()
    rows, _ = visit(story, OneForAll, pace=SLOW)
    assert outcomes(rows) == ["answered"] * 3
    threads = [Board.thread(name) for name in "abc"]
    assert threads[:2] == [[answer_to("short")], [TOLD]]
    assert "".join(threads[2]) == answer_to("long")


# ---------------------------------------------------------------- seed 001


@pytest.mark.shows(chat_recovery="C-0727", messenger="M39")
@pytest.mark.parametrize("ends", [True, False])
def test_an_interruption_that_recovers_is_shown_as_one_and_edited_into_the_answer(ends: bool) -> None:
    """Seed 001, M39: what was said before the stall is never posted as the answer. If nothing comes of it, an apology is."""
    stall = Fault(kind=FaultKind.STALL, event=6)
    plan = (
        FaultPlan.at({1: stall})
        if ends
        else FaultPlan.at({1: stall} | dict.fromkeys(range(2, 100), Fault(kind=FaultKind.STALL, event=1)))
    )
    Board.begin()
    rows, _ = visit(asked, plan=plan, pace=SLOW)
    (history,) = Board.history()
    assert any(each.endswith(P.recovering_text) for each in history)
    assert (outcomes(rows), history[-1].endswith(P.interrupted_text)) == (
        (["answered"], False) if ends else (["apologised"], True)
    )
    assert (history[-1] == TOLD) is ends
    assert history[-2].endswith(P.recovering_text) is not ends, "what is said after the recovery stands there alone"


def test_the_events_of_a_reply_are_read_from_its_rows_by_any_life() -> None:
    event = said("hi")
    assert type(event).model_validate(event.model_dump(mode="json")) == event
