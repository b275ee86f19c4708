"""Questions to people: answered by their next message, or imported with a conversation; and answers that the provider had stored."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.actors import ChatRecoveryContext, client_tool
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, Adder, Outside
from tests.actors.chat.room import Room, outcomes, texts, visit, visiting
from tests.actors.chat.talk import Worker, risky

PROMPT = {"type": "object", "properties": {"prompt": {"type": "string"}}}
ASKS = ScriptedCall(name="ask_user", arguments={"prompt": "Which colour?"})
SCRIPT_ASKS = Script(questions=(ScriptedQuestion(asks="paint", rounds=(Round(calls=(ASKS,)),)), *SCRIPT.questions))


class Painter(Adder):
    """The example of seed 000: a question that the client shows, and that the user's next message answers."""

    def tools(self) -> list[Any]:
        """The question."""
        return [client_tool("ask_user", "Ask the user.", PROMPT), risky]

    def repair_interrupted_tool_part(self, part: dict[str, Any]) -> dict[str, Any]:
        """The question is a part of the talk."""
        if part["type"] == "tool-ask_user" and part["input"].get("prompt"):
            return {"type": "text", "text": part["input"]["prompt"]}
        return super().repair_interrupted_tool_part(part)


class Asker(Painter):
    """The same without a repair of its own."""

    def repair_interrupted_tool_part(self, part: dict[str, Any]) -> dict[str, Any]:
        """The default."""
        return Worker.repair_interrupted_tool_part(self, part)  # type: ignore[arg-type]


@pytest.mark.parametrize("sleeps", [False, True])
def test_a_question_is_answered_by_the_next_message(sleeps: bool) -> None:
    """Its turn ends with the question as words, the model reads question and answer as talk, and nothing waits any more."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "paint", request_id="asked")
        await room.until(lambda: room.is_("parked"))
        assert await room.do("has_pending_interaction")
        assert not await room.do("wait_until_stable", 1_000)
        if sleeps:
            await room.sleep()
        assert (await room.do("chat", "words: blue")).ok
        told = await room.do("inspect_turn", "asked")
        assert (told["status"], told["reason"]) == ("completed", "answered_by_message")
        asked, question, answer, _ = await room.do("get_messages")
        assert [each["role"] for each in (asked, question, answer)] == ["user", "assistant", "user"]
        assert texts(question) == ["Which colour?"]
        assert not await room.do("has_pending_interaction")
        assert await room.do("wait_until_stable", 1_000)
        assert (await room.do("attach", "asked")).text == "Which colour?"

    visit(Painter, story, SCRIPT_ASKS)
    sent = Outside.provider.log()[-1].body["messages"]
    assert [(each["role"], each["content"]) for each in sent[-2:]] == [
        ("assistant", "Which colour?"),
        ("user", "words: blue"),
    ]


RULE = {"id": "rule", "role": "system", "parts": [{"type": "text", "text": "Be brief."}]}


@pytest.mark.parametrize(
    ("agent", "said"),
    [(Asker, "words"), (Painter, [RULE])],
    ids=["beside a question without such a repair", "by the system"],  # W-29: it answers nothing
)
def test_only_a_person_answers_a_question_by_a_message_and_only_if_it_may_be_repaired(agent: Any, said: Any) -> None:
    async def story(room: Room) -> None:
        await room.do("submit_messages", "paint", request_id="asked")
        await room.until(lambda: room.is_("parked"))
        assert (await room.do("chat", said)).ok
        assert await room.do("has_pending_interaction")
        assert await room.do("cancel_chat", "asked")

    visit(agent, story, SCRIPT_ASKS)


def imported(state: str, name: str) -> dict[str, Any]:
    """A call of another system, which waits for a person."""
    given = {"what": "it"} if name == "risky" else {"prompt": "Which colour?"}
    about = {"type": f"tool-{name}", "toolName": name, "toolCallId": "c1", "state": state, "input": given}
    return about if state != "approval-requested" else {**about, "approval": {"id": "a1"}}


@pytest.mark.parametrize("sleeps", [False, True])
@pytest.mark.parametrize("approved", [True, False])
def test_an_imported_call_that_waits_for_approval_can_be_answered(approved: bool, sleeps: bool) -> None:
    """It is pending; the answer begins a turn that continues its message, runs the call once if it is allowed, and lets the model go on."""

    async def story(room: Room) -> None:
        part = imported("approval-requested", "risky")
        await room.do("add_messages", ["words", {"id": "leaf", "role": "assistant", "parts": [part]}])
        assert await room.do("has_pending_interaction")
        assert not await room.do("wait_until_stable", 1_000)
        if sleeps:
            await room.sleep()
        assert not await room.do("respond_to_approval", "c2", True)
        assert await room.do("respond_to_approval", "c1", approved)
        assert not await room.do("respond_to_approval", "c1", approved)
        assert await room.do("wait_until_stable", 60_000)
        assert not await room.do("has_pending_interaction")
        _, leaf = await room.do("get_messages")
        assert leaf["id"] == "leaf"
        assert outcomes(leaf)[0][0] == ("output-available" if approved else "output-denied")
        assert texts(leaf)[-1].endswith("∎")

    script = Script(questions=(ScriptedQuestion(asks="words", rounds=(), concludes="Only words"),))
    visit(Painter, story, script)
    assert Outside.effects["risky", "it"] == approved


@visiting(Asker)
async def test_an_imported_question_can_be_answered_by_its_client(room: Room, /) -> None:
    """With its result, as one of its own turns."""
    part = imported("input-available", "ask_user")
    await room.do("add_messages", ["words", {"id": "leaf", "role": "assistant", "parts": [part]}])
    assert await room.do("has_pending_interaction")
    assert await room.do("resolve_tool_call", "c1", "blue")
    assert await room.do("wait_until_stable", 60_000)
    _, leaf = await room.do("get_messages")
    assert outcomes(leaf) == [("output-available", "blue")]


class Stored(Adder):
    """Fetches the answer that its provider has stored."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, Any] | None:
        """The stored answer."""
        return {"answer": f"Stored for {context.request_id}."}


@pytest.mark.parametrize("number", [1, 2])
def test_a_stored_answer_completes_an_interrupted_turn(number: int) -> None:
    """The model is not asked again; what had broken off is withdrawn, and the work of tools stays."""

    async def story(room: Room) -> None:
        result, listener = await room.follow("chat", "sum", request_id="asked", follow=True)
        assert (result.status, listener.ends) == ("completed", ["on_interrupted", "on_done"])
        assert texts(result.message)[-1] == "Stored for asked."
        assert len(outcomes(result.message)) == (number - 1) * 3
        assert (await room.do("inspect_turn", "asked"))["incident"] is None

    visit(Stored, story, plan=FaultPlan.at({number: Fault(kind=FaultKind.STALL, event=2)}))
    assert len(Outside.provider.log()) == number


class Wrong(Adder):
    """Returns no text."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, Any] | None:
        """A mistake."""
        return {"answer": 7}


def test_a_stored_answer_that_is_no_text_is_reported_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """The turn goes on as if nothing had been said."""

    async def story(room: Room) -> None:
        assert (await room.do("chat", "words")).text.endswith("∎")

    visit(Wrong, story, plan=FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=2)}))
    assert "answer: 7 is int, not a text" in caplog.text
