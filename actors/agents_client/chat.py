"""What a client of `@cloudflare/ai-chat` asks of a conversation: turns, cancels, clears, another transcript, answers to calls."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, ClassVar, Final

from perdure.actors.agents_client.line import Line, encoded, words_of
from perdure.actors.agents_client.resume import Attendance
from perdure.actors.agents_client.talk import MESSAGES, RESPONSE, Author, Entry, Talk
from perdure.actors.gateway.bodies import parsed_object
from perdure.actors.tasks import Pending
from perdure.ledger import PerdureError
from perdure.policies import JsonObject, Plan, plan_request

OWN_FIELDS: Final = frozenset({"messages", "trigger", "clientTools"})
logger = logging.getLogger("perdure.gateway")


class ChatDesk:
    """Takes in the chat frames of one connection. What they cause is told to all connections by the feed of the conversation."""

    def __init__(self, line: Line, talk: Talk, attendance: Attendance) -> None:
        self._line, self._talk, self._attendance = line, talk, attendance
        self._call = talk.caller.call

    async def take(self, frame: dict[str, Any]) -> None:
        """Do what a frame asks. One that lacks what it needs is ignored."""
        taking = self._taking.get(frame["type"])
        if taking is not None:
            await taking(self, frame)

    async def refuse(self, frame: JsonObject, why: str) -> None:
        """Refuse what a frame asks, as far as it has an answer."""
        logger.warning("a frame %.80r of a chat client was refused: %s", frame["type"], why)
        request_id = frame.get("id")
        if frame["type"] == "cf_agent_use_chat_request" and isinstance(request_id, str):
            await self._refuse(request_id, why)

    # turns

    async def _request(self, frame: JsonObject) -> None:
        request_id = frame.get("id")
        if not isinstance(request_id, str) or not request_id:
            return
        try:
            await self._submit(request_id, _body_of(frame))
        except PerdureError as problem:
            await self._refuse(request_id, words_of(problem))

    async def _submit(self, request_id: str, body: dict[str, Any]) -> None:
        standing = await self._call("_perdure_standing", request_id)
        if standing["known"] is not None:
            return  # the same request again: its turn is under way, or over
        waiting = [[each["id"], each["role"]] for turn in standing["turns"] for each in turn["waiting"]]
        sent = body.get("messages") if isinstance(body.get("messages"), list) else []
        plan = plan_request([*standing["messages"], *waiting], sent or [], body.get("trigger"))
        if plan.trigger is None:
            await self._refuse(request_id, plan.why)
            return
        self._talk.authors[request_id] = Author(self._line.number, self._talk.head)
        told = await self._call(
            "_perdure_accept_turn", plan.trigger, plan.messages or None, request_id, _options(plan, body)
        )
        if told["reason"] == "dropped":
            self._talk.authors.pop(request_id, None)
            await self._line.send(MESSAGES, messages=await self._talk.transcript())
            await self._line.send(RESPONSE, id=request_id, body="", done=True, outcome="skipped")

    async def _refuse(self, request_id: str, why: str) -> None:
        self._talk.authors.pop(request_id, None)
        await self._line.send(RESPONSE, id=request_id, body=why, done=False, error=True)
        await self._line.send(RESPONSE, id=request_id, body="", done=True, outcome="error")

    async def _cancel(self, frame: JsonObject) -> None:
        wire = frame.get("id")
        turn = next((each.turn for each in self._talk.turns.values() if each.wire == wire), wire)
        if isinstance(turn, str) and turn:
            await self._call("cancel_chat", turn)

    # the transcript

    async def _clear(self, _frame: JsonObject) -> None:
        self._talk.cleared_by = self._line.number
        await self._call("clear")

    async def _replace(self, frame: JsonObject) -> None:
        if not isinstance(frame.get("messages"), list):
            return
        try:
            await self._call("_perdure_replace_messages", frame["messages"])
        except PerdureError as problem:
            logger.warning("a chat client's transcript was refused: %s", problem)
            await self._line.send(MESSAGES, messages=await self._talk.transcript())
            return
        await self._talk.show_all(besides=self._line.number)

    # answers to calls

    async def _result(self, frame: JsonObject) -> None:
        call_id, error = frame.get("toolCallId"), None
        if frame.get("state") == "output-error":
            error = str(frame.get("errorText") or "the client could not execute the call")
        if isinstance(call_id, str):
            await self._answer(frame, call_id, "resolve_tool_call", call_id, frame.get("output"), error)

    async def _approval(self, frame: JsonObject) -> None:
        call_id, approved = frame.get("toolCallId"), frame.get("approved")
        if isinstance(call_id, str) and isinstance(approved, bool):
            await self._answer(frame, call_id, "respond_to_approval", call_id, approved)

    async def _answer(self, frame: JsonObject, call_id: str, method: str, *args: object) -> None:
        """Answer a call. The one who wants the continuation of its turn owns it, from before it can begin."""
        try:
            turns = (await self._call("_perdure_standing"))["turns"] if frame.get("autoContinue") is True else []
            for turn in (each for each in turns if call_id in each["waits_for"]):
                self._attendance.answered(turn["request_id"])
            counted = await self._call(method, *args)
        except PerdureError as problem:
            logger.warning("the answer of a chat client to the call %.80r was refused: %s", call_id, problem)
            counted = False
        if counted:
            await self._tell_answered(call_id)

    async def _tell_answered(self, call_id: str) -> None:
        """Every tab shows the answered call."""
        for message in reversed(await self._talk.transcript()):
            if any(part.get("toolCallId") == call_id for part in message["parts"]):
                frame = encoded("cf_agent_message_updated", message=message)
                self._talk.add(Entry("updated", frame=frame))
                return

    # resuming

    async def _ask(self, frame: JsonObject) -> None:
        self._attendance.ask(frame)

    _taking: ClassVar[dict[str, Callable[[ChatDesk, JsonObject], Pending[None]]]] = {
        "cf_agent_use_chat_request": _request,
        "cf_agent_chat_request_cancel": _cancel,
        "cf_agent_chat_clear": _clear,
        "cf_agent_chat_messages": _replace,
        "cf_agent_tool_result": _result,
        "cf_agent_tool_approval": _approval,
        "cf_agent_stream_resume_request": _ask,
        "cf_agent_stream_resume_ack": _ask,
    }


def _body_of(frame: JsonObject) -> JsonObject:
    """The body of a request. Raises `BadRequest` if it is no JSON object."""
    init = frame.get("init")
    body = init.get("body") if isinstance(init, dict) else None
    return parsed_object(body if isinstance(body, str) else "", "init.body")


def _options(plan: Plan, body: JsonObject) -> JsonObject:
    """The options of the turn: what else the client has sent is its metadata."""
    more = {name: value for name, value in body.items() if name not in OWN_FIELDS}
    found: JsonObject = {"metadata": more} if more else {}
    if plan.instead_of:
        found["instead_of"] = plan.instead_of
    return found | ({"client_tools": body["clientTools"]} if body.get("clientTools") else {})
