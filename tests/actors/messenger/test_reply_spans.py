"""Spans of replies: one for each, with its delivery, its turn and its requests to the provider below it, whatever dies."""

from __future__ import annotations

from typing import Any

from perdure.policies import Delivery
from perdure.scenarios.provider.faults import Pace
from tests.actors.messenger.paper import Board, Bot, Chat, visit
from tests.actors.traces import Recorder, tree

SLOW = Pace(first_ms=300, between_ms=100)


class Leaver(Bot):
    """Leaves what nobody knows the fate of."""

    delivery = Delivery(unknown="leave")


async def asked(chat: Chat) -> list[dict[str, Any]]:
    await chat.hear("a short one please")
    return await chat.rest()


def test_a_reply_has_its_delivery_its_turn_and_its_requests_below_it() -> None:
    Board.begin()
    recorder = Recorder()
    ((row,), _) = visit(asked, telemetry=recorder)
    ((reply, ((fiber, below),)),) = tree(recorder.spans)
    assert (reply, fiber) == ("reply paper", "fiber perdure:reply")
    assert [each if isinstance(each, str) else each[0] for each in below][:1] == ["invoke_agent Bot"]
    assert "post paper" in below
    span, post = recorder.one("reply paper"), recorder.one("post paper")
    assert (span.attributes["perdure.reply.id"], span.attributes["perdure.reply.status"]) == (
        row["reply_id"],
        "answered",
    )
    assert (span.start_ms, span.end_ms) == (row["opened_at_ms"], row["settled_at_ms"])
    assert (post.kind, post.error, span.error) == ("client", "", "")


def test_a_request_that_the_provider_does_not_take_says_why() -> None:
    Board.begin(post=["busy", "unreached"])
    recorder = Recorder()
    visit(asked, telemetry=recorder)
    assert [span.error for span in recorder.named("post paper")] == ["busy", "unreached", ""]
    assert recorder.one("reply paper").error == ""


def test_an_agent_that_dies_in_an_answer_has_one_reply_and_two_attempts_at_it() -> None:
    Board.begin()
    recorder = Recorder()

    async def story(chat: Chat) -> Any:
        await chat.hear("a story please")
        await chat.until(lambda: bool(Board.thread()))
        chat.kill()
        return await chat.rest()

    visit(story, pace=SLOW, telemetry=recorder)
    tree(recorder.spans)
    assert recorder.one("reply paper").error == ""
    first, second = recorder.named("fiber perdure:reply")
    assert (first.error, second.error, second.links) == ("process_lost", "", (first.context,))


def test_a_parked_reply_that_is_tried_again_has_a_span_for_each_with_a_link() -> None:
    Board.begin(post=["silent"])
    recorder = Recorder()

    async def story(chat: Chat) -> Any:
        await chat.hear("a short one please")
        (row,) = await chat.rest()
        assert row["status"] == "parked"
        assert await chat.do("retry_delivery", row["reply_id"])
        return await chat.rest()

    visit(story, Leaver, telemetry=recorder)
    first, second = recorder.named("reply paper")
    assert (first.error, first.attributes["perdure.reply.status"]) == ("parked", "parked")
    assert (second.links, second.context.trace_id) == ((first.context,), first.context.trace_id)
    tree(recorder.spans)
