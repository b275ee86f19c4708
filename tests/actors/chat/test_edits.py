"""A conversation is edited: a message is replaced with what follows it, an answer is given again, messages are deleted."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.ledger import BadRequest, ConflictingRequest
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, Adder, Outside, in_third_answer
from tests.actors.chat.room import Room, texts, visit, visiting
from tests.actors.chat.test_questions import SCRIPT_ASKS, Asker

SLOW = Pace(between_ms=200)


def sent() -> list[tuple[str, str]]:
    """The newest request, as roles and the beginnings of words."""
    return [(each["role"], str(each["content"])[:10]) for each in Outside.provider.log()[-1].body["messages"]]


async def shown(room: Room) -> list[str]:
    """The transcript, as ids; those that were replaced in brackets."""
    found = await room.do("get_messages")
    return [f"({each['id']})" if "replacedBy" in each.get("metadata", {}) else each["id"] for each in found]


async def talk(room: Room) -> None:
    """Two turns, `one` and `two`."""
    assert (await room.do("chat", "words one", request_id="one")).ok
    assert (await room.do("chat", "words two", request_id="two")).ok


@visiting(Adder)
async def test_a_transcript_that_is_replaced_has_what_was_given_also_where_that_only_takes_away_or_only_adds(
    room: Room, /
) -> None:
    await talk(room)
    whole = await room.do("get_messages")
    new = {"id": "new", "role": "user", "parts": [{"type": "text", "text": "More."}]}
    for wanted in (whole[:1], [*whole[:1], new], [*whole[:1], new], [whole[0] | {"parts": new["parts"]}, new]):
        await room.do("_perdure_replace_messages", wanted, True)
        for _ in range(2):
            assert [(each["id"], each["parts"]) for each in await room.do("get_messages")] == [
                (each["id"], each["parts"]) for each in wanted
            ]
            await room.sleep()


@visiting(Adder, pace=SLOW)
async def test_who_may_not_instruct_the_model_sends_back_what_it_is_told_also_by_a_turn_that_waits(
    room: Room, /
) -> None:
    kind, obey = ({"id": "k", "role": "system", "parts": [{"type": "text", "text": each}]} for each in ("Hi.", "No."))
    await room.do("submit_messages", "words one", request_id="one")
    await room.do("submit_messages", [kind, "words two"], request_id="two")
    assert (await room.do("inspect_turn", "two"))["status"] == "accepted"
    for sent in ([obey], [{**obey, "id": "o"}]):
        with pytest.raises(BadRequest, match="may be sent back as the conversation holds it"):
            await room.do("_perdure_replace_messages", sent, False)
    await room.do("_perdure_replace_messages", [kind], False)
    assert await room.do("wait_until_stable")
    assert kind in await room.do("get_messages")
    await room.do("_perdure_replace_messages", [], False)
    assert await room.do("get_messages") == [kind], "nor does it take an instruction away"
    await room.do("_perdure_replace_messages", [], True)
    assert await room.do("get_messages") == []


@pytest.mark.parametrize("keep", [False, True])
@visiting(Adder)
async def test_a_message_is_replaced_with_all_that_follows_it(room: Room, /, keep: bool) -> None:
    """The model reads only the new one; what was replaced is gone, or stays for people, also in the next life."""
    await talk(room)
    result = await room.do("chat", "words three", request_id="three", instead_of="one-0", keep=keep)
    assert result.ok
    old = ["(one-0)", "(one-answer)", "(two-0)", "(two-answer)"] if keep else []
    assert await shown(room) == [*old, "three-0", "three-answer"]
    assert sent() == [("user", "words thre")]
    await room.sleep()
    assert await shown(room) == [*old, "three-0", "three-answer"]
    assert (await room.do("chat", "words four")).ok
    assert sent() == [("user", "words thre"), ("assistant", "Only words"), ("user", "words four")]


@pytest.mark.parametrize("verb", ["_perdure_replace_messages", "add_messages"])
def test_a_message_that_was_replaced_and_comes_back_by_its_id_stays_so(verb: str) -> None:
    """Whatever else is said of it. The model does not read it, and what a client says of that is not taken."""

    async def story(room: Room) -> None:
        await talk(room)
        assert (await room.do("chat", "words three", request_id="three", instead_of="two-0", keep=True)).ok
        kept = ["one-0", "one-answer", "(two-0)", "(two-answer)", "three-0", "three-answer"]
        assert await shown(room) == kept
        found = await room.do("get_messages")
        sent_back = [{**each, "metadata": {"tab": 1}} for each in found]
        sent_back[0]["metadata"] = {"replacedBy": "three-answer"}
        await room.do(verb, sent_back, *([False] if verb.startswith("_") else []))
        for _ in range(2):
            assert await shown(room) == kept
            await room.sleep()
        told = [each.get("metadata", {}) for each in await room.do("get_messages")]
        assert told[2] == {**found[2]["metadata"], "tab": 1}
        assert (await room.do("chat", "words four")).ok
        assert [words for role, words in sent() if role == "user"] == ["words one", "words thre", "words four"]

    visit(Adder, story)


@pytest.mark.shows(chat_recovery="C-0957 C-1013")
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("instead_of", [None, "one-answer"])
@visiting(Adder)
async def test_an_answer_is_given_again(room: Room, /, instead_of: str | None, keep: bool) -> None:
    """By a new turn. The newest one, or an earlier one with what follows it."""
    await talk(room)
    options = {} if instead_of is None else {"instead_of": instead_of}
    result, listener = await room.follow("regenerate", request_id="again", keep=keep, **options)
    assert result.ok
    assert listener.ends == ["on_done"]
    assert result.message["id"] == "again-answer"
    assert texts(result.message)[0].startswith("Only words")
    first = ["one-0", "one-answer", "two-0", "two-answer"]
    at = 1 if instead_of else 3
    kept = [f"({each})" for each in first[at:]] if keep else []
    assert await shown(room) == [*first[:at], *kept, "again-answer"]
    assert [role for role, _ in sent()] == ["user", "assistant", "user"][:at]
    assert await room.do("regenerate", request_id="again", keep=keep, **options) == result, "the same turn"


@visiting(Adder)
async def test_there_may_be_nothing_to_give_again(room: Room, /) -> None:
    """Then the turn is skipped, and nothing is lost."""
    for _ in range(2):
        skipped = await room.do("regenerate")
        told = (skipped.status, skipped.reason, skipped.error)
        assert told == ("skipped", "no_answer", "There is no answer to give again.")
        await room.do("add_messages", "words")
    assert await room.roles() == "uu"


def test_a_replacement_is_whole_or_not_at_all_whatever_dies() -> None:
    """A death while the new answer is given leaves the new message and its answer, once."""
    death = in_third_answer()

    async def story(room: Room) -> None:
        await talk(room)
        assert (await room.do("chat", "words three", request_id="three", instead_of="one-0")).ok
        assert death.victims
        assert await shown(room) == ["three-0", "three-answer"]

    visit(Adder, story, kill_when=death)


@visiting(Asker, SCRIPT_ASKS)
async def test_a_question_that_was_replaced_waits_for_nobody(room: Room, /) -> None:
    """Its turn is cancelled."""
    await room.do("submit_messages", "paint", request_id="asked")
    await room.until(lambda: room.is_("parked"))
    assert (await room.do("chat", "words", request_id="new", instead_of="asked-0")).ok
    assert await room.is_("aborted")
    assert await shown(room) == ["new-0", "new-answer"]
    assert not await room.do("has_pending_interaction")


@visiting(Adder, pace=SLOW)
async def test_messages_are_deleted(room: Room, /) -> None:
    """For the model and in the next life; those of a turn under way are not."""
    await talk(room)
    asking = room.soon("chat", "words three", request_id="three")
    await room.until(lambda: Outside.provider.open)
    with pytest.raises(BadRequest) as refused:
        await room.do("delete_messages", ["one-0", "three-0"])
    assert refused.value.field == "message_ids[1]"
    assert (await asking).ok
    assert await room.do("delete_messages", ["one-0", "one-answer", "unknown"]) == 2
    assert await room.do("delete_messages", ["one-0", "one-answer"]) == 0
    await room.sleep()
    assert await shown(room) == ["two-0", "two-answer", "three-0", "three-answer"]
    assert (await room.do("chat", "words four")).ok
    assert sent()[0] == ("user", "words two")


def said(words: str) -> dict[str, Any]:
    """A message of the user with an id of its own."""
    return {"id": "mine", "role": "user", "parts": [{"type": "text", "text": words}]}


@pytest.mark.parametrize("verb", ["chat", "save_messages", "submit_messages"])
@visiting(Adder)
async def test_a_known_id_with_other_content_is_a_conflict(room: Room, /, verb: str) -> None:
    """It names the field, and changes nothing; the same message again is the same."""
    await room.do("add_messages", said("at first") | {"id": "first"})
    assert (await room.do("chat", said("words"), request_id="one")).ok
    before = await room.do("get_messages")
    with pytest.raises(ConflictingRequest) as refused:
        await room.do(verb, ["and this", said("other words")])
    assert refused.value.field == "messages[1].id"
    assert await room.do("get_messages") == before
    instead = said("new words") | {"id": "first"}
    with pytest.raises(ConflictingRequest) as refused:
        await room.do(verb, [instead, said("other words")], instead_of="first")
    assert refused.value.field == "messages[1].id", "only what is to be replaced may differ"
    assert await room.do("get_messages") == before
    assert (await room.do("chat", said("words"), request_id="two")).ok
    assert await room.do("get_messages") == before


@pytest.mark.parametrize(
    ("verb", "args", "options", "field"),
    [
        ("chat", ("words",), {"instead_of": "unknown"}, "instead_of"),
        ("chat", ("words",), {"instead_of": "one-answer"}, "instead_of"),
        ("regenerate", (), {"instead_of": "one-0"}, "instead_of"),
        ("continue_last_turn", (), {"instead_of": "one-answer"}, "instead_of"),
        ("chat", ("words",), {"keep": True}, "keep"),
        ("regenerate", (), {"keep": "yes"}, "keep"),
    ],
)
@visiting(Adder)
async def test_what_cannot_be_replaced_is_refused(
    room: Room, /, verb: str, args: Any, options: dict[str, Any], field: str
) -> None:
    """By an error that names the field."""
    assert (await room.do("chat", "words", request_id="one")).ok
    with pytest.raises(BadRequest) as refused:
        await room.do(verb, *args, **options)
    assert refused.value.field == field
    assert await shown(room) == ["one-0", "one-answer"]


def test_the_calls_of_a_replaced_answer_are_not_made_again_by_anybody() -> None:
    """A new answer makes its own calls, under ids of its own."""
    question = ScriptedQuestion(
        asks="sum", rounds=(Round(calls=(ScriptedCall(name="add", arguments={"a": 1, "b": 2}),)),)
    )

    async def story(room: Room) -> None:
        assert (await room.do("chat", "sum", request_id="one")).ok
        again = await room.do("regenerate", request_id="again")
        assert again.ok
        assert Outside.effects["add", 1] == 2
        assert await shown(room) == ["one-0", "again-answer"]

    visit(Adder, story, Script(questions=(question, *SCRIPT.questions)))
