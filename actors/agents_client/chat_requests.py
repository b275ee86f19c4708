"""What a client of `@cloudflare/ai-chat` asks of a conversation: turns, cancels, clears, another transcript, answers to calls. Pure.

What its frames cause is told to all connections by the feed of the conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from perdure.actors.agents_client.frames import encoded
from perdure.actors.agents_client.line import ChatLine
from perdure.actors.agents_client.talk import MESSAGES, RESPONSE, SEND, Attendance, Talk, TurnNotice
from perdure.actors.chat.turn import TurnStanding
from perdure.actors.gateway.bodies import parsed_object
from perdure.actors.gateway.chat_turns import (
    CallAnswer,
    ChatTurns,
    Deciding,
    TurnDropped,
    is_edited,
    is_other,
    was_sent,
)
from perdure.actors.gateway.problems import problem_text
from perdure.ledger import PerdureError
from perdure.policies import JsonObject, Message, asked_again, plan_request

PASSIVE: Final = frozenset({"cf_agent_stream_resume_request", "cf_agent_stream_resume_ack"})
OWN_FIELDS: Final = frozenset({"messages", "trigger", "clientTools"})


class ChatDesk:
    """Decides what the chat frames of one connection, of this number, ask for."""

    def __init__(self, number: int, talk: Talk, attendance: Attendance) -> None:
        self._number, self._talk, self._attendance = number, talk, attendance

    def take(self, frame: JsonObject) -> Deciding[None]:
        taking = self._taking.get(str(frame["type"]))
        if frame["type"] in PASSIVE:
            self._attendance.ask(frame)
        elif taking is not None:
            yield from taking(self, frame)

    def refuse(self, frame: JsonObject, why: str) -> Deciding[None]:
        yield ChatLine.warn, "a frame %.80r of a chat client was refused: %s", frame["type"], why
        request_id = frame.get("id")
        if frame["type"] == "cf_agent_use_chat_request" and isinstance(request_id, str):
            yield from self._attendance.refuse(request_id, why)

    # turns

    def _request(self, frame: JsonObject) -> Deciding[None]:
        request_id = frame.get("id")
        if not isinstance(request_id, str) or not request_id:
            return
        init = frame.get("init")
        body = init.get("body") if isinstance(init, dict) else None
        try:
            yield from self._submit(request_id, parsed_object(body if isinstance(body, str) else "", "init.body"))
        except PerdureError as problem:
            yield from self._attendance.refuse(request_id, problem_text(problem))

    def _submit(self, request_id: str, body: JsonObject) -> Deciding[None]:
        standing: Any = yield ChatTurns.standing, request_id
        messages = body.get("messages")
        sent = messages if isinstance(messages, list) else []
        if standing["known"] is not None:
            yield from self._again(standing["known"], sent, body.get("trigger"))
            return
        waiting = [[each["id"], each["role"]] for turn in standing["turns"] for each in turn["waiting"]]
        plan = plan_request([*standing["messages"], *waiting], sent, body.get("trigger"))
        last = next((each for each in reversed(sent) if isinstance(each, Mapping)), {})
        if plan.trigger == "regenerate" and (yield from is_edited(last)):
            plan = asked_again(last)
        if plan.trigger is None:
            yield from self._attendance.refuse(request_id, plan.why)
            return
        self._talk.authors[request_id] = self._number, self._talk.head
        try:
            yield ChatTurns.accept, plan, request_id, _options(body)
        except PerdureError as problem:
            self._talk.authors.pop(request_id, None)
            if not isinstance(problem, TurnDropped):
                raise
            yield SEND, encoded(MESSAGES, messages=(yield from self._talk.transcript()))
            yield SEND, encoded(RESPONSE, id=request_id, body="", done=True, outcome="skipped")

    def _again(self, known: TurnStanding, sent: list[Any], trigger: object) -> Deciding[None]:
        # The same request again is its turn, which is under way, or over. What another one says would be lost without a word.
        request_id, ids, asks_anew = known["request_id"], known["message_ids"], trigger == "regenerate-message"
        users = [each for each in sent if isinstance(each, Mapping) and each.get("role") == "user"]
        said: Mapping[str, object] = users[-1] if users else {}
        held_id = next((each for each in ids if each == said.get("id")), ids[-1] if ids else "")
        held: Message | None = next((each for each in known["waiting"] if each["id"] == held_id), None)
        if held is None and ids:
            held = yield ChatTurns.message, held_id
        # An edited message has an id of ours, and it may be another answer that was asked for.
        asked_anew = known["trigger"] == "regenerate" or (asks_anew and held_id.startswith(f"{request_id}-"))
        if asked_anew != asks_anew or (held is not None and (not said or is_other(said, held))):
            was = was_sent(held) if held is not None else f"{request_id} was sent before"
            yield from self._attendance.refuse(request_id, f"{was}; ask something else under another id")

    def _cancel(self, frame: JsonObject) -> Deciding[None]:
        wire = frame.get("id")
        turn = next((each.turn for each in self._talk.turns.values() if each.wire == wire), wire)
        if isinstance(turn, str) and turn:
            yield ChatTurns.cancel, turn

    # the transcript

    def _clear(self, _frame: JsonObject) -> Deciding[None]:
        self._talk.cleared_by = self._number
        yield ChatLine.call, "clear"

    def _replace(self, frame: JsonObject) -> Deciding[None]:
        if not isinstance(frame.get("messages"), list):
            return
        try:
            yield ChatLine.replace, frame["messages"]
        except PerdureError as problem:
            yield ChatLine.warn, "a chat client's transcript was refused: %s", problem
            yield SEND, encoded(MESSAGES, messages=(yield from self._talk.transcript()))
            return
        yield from self._talk.show_all(besides=self._number)

    # answers to calls

    def _result(self, frame: JsonObject) -> Deciding[None]:
        call_id, error = frame.get("toolCallId"), None
        if frame.get("state") == "output-error":
            error = str(frame.get("errorText") or "the client could not execute the call")
        if isinstance(call_id, str):
            yield from self._answer(frame, CallAnswer(call_id, frame.get("output"), error))

    def _approval(self, frame: JsonObject) -> Deciding[None]:
        call_id, approved = frame.get("toolCallId"), frame.get("approved")
        if isinstance(call_id, str) and isinstance(approved, bool):
            yield from self._answer(frame, CallAnswer(call_id, approved=approved))

    def _answer(self, frame: JsonObject, answer: CallAnswer) -> Deciding[None]:
        # The one who wants the continuation of the turn owns it, from before it can begin.
        try:
            turns = (yield (ChatTurns.standing,))["turns"] if frame.get("autoContinue") is True else []
            for turn in (each for each in turns if answer.call_id in each["waits_for"]):
                self._attendance.answered(turn["request_id"])
            counted: bool = yield ChatTurns.answer, answer
        except PerdureError as problem:
            words = "the answer of a chat client to the call %.80r was refused: %s"
            yield ChatLine.warn, words, answer.call_id, problem
            return
        message: Message | None = (yield ChatTurns.holder, {answer.call_id}) if counted else None
        if message is not None:
            self._talk.add(TurnNotice("updated", frame=encoded("cf_agent_message_updated", message=message)))

    _taking: ClassVar[dict[str, Callable[[ChatDesk, JsonObject], Deciding[None]]]] = {
        "cf_agent_use_chat_request": _request,
        "cf_agent_chat_request_cancel": _cancel,
        "cf_agent_chat_clear": _clear,
        "cf_agent_chat_messages": _replace,
        "cf_agent_tool_result": _result,
        "cf_agent_tool_approval": _approval,
    }


def _options(body: JsonObject) -> JsonObject:
    # What else the client has sent is the turn's metadata.
    more = {name: value for name, value in body.items() if name not in OWN_FIELDS}
    found: JsonObject = {"metadata": more} if more else {}
    return found | ({"client_tools": body["clientTools"]} if body.get("clientTools") else {})
