"""The answers of clients and people to tool calls, and how long a turn waits for them.

A turn waits for ever, or for `ChatRecovery.parked_deadline_ms` (spec W-28). A parked turn does not keep its agent awake. Its deadline
acts on time if the agent is awake, and else when it next wakes, before anybody can look at the turn or answer it.

A call that waits is also a question to people: the ledger is told which of them are open, so that they stand in its one list.
Whoever answers, by whatever way, is answered here, in the commit by which the turn goes on: the first answer that counts closes the call
everywhere.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, NamedTuple

from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.live_turn import LiveTurn
from perdure.actors.chat.tools import ANYBODY, client_tools
from perdure.actors.chat.turn import Turn
from perdure.actors.chat.turn_recovery import TurnOutcome, reported
from perdure.actors.code.author_call import tried_now
from perdure.actors.life.host_options import pool_spec
from perdure.ledger import (
    APPROVAL,
    CLIENT_TOOL,
    YES_OR_NO,
    AnswerAsk,
    AnswerForbidden,
    AskCalls,
    AskClosed,
    AskedCall,
    AskRecord,
    AskRow,
    AskStatus,
    GivenAnswer,
    TooLarge,
    call_ask_id,
    call_told,
    checked_answer,
    digest_of,
    pack,
    pack_value,
    unpack_value,
)
from perdure.policies import (
    Answerer,
    ChatRecovery,
    Event,
    JsonObject,
    Part,
    ToolState,
    TurnEvent,
    TurnStatus,
    default_repair,
    deferred_ids,
    tool_name,
    waiting_calls,
)

Ending = Callable[[LiveTurn], Awaitable[TurnOutcome]]
CHAT: Final = "chat"
"""The channel of an answer that comes by the agent's own methods."""
OF_CHAT: Final = Answerer("", is_operator=True)
"""Whoever answers so."""
PART, EXPIRY = "questions", "approvals"
NO_ANSWER_IN_TIME = "Nobody has answered in time, so the call is denied."
UNANSWERED = "Nobody has answered in time, so the turn has ended."


class _Asked(NamedTuple):
    # A call that waits, the turn that it is of, and its question.
    turn: Turn
    part: Part
    call: AskedCall


class ClientAnswers:
    """The calls of one agent's open turns that wait for a client.

    Args:
        close: ends a turn that is not being played.
        play: plays accepted turns.
    """

    def __init__(
        self,
        state: ConversationState,
        close: Callable[[Turn, Ending], Coroutine[object, object, None]],
        play: Callable[[], None],
    ) -> None:
        self._state, self._close, self._play = state, close, play
        self._watched: dict[str, Turn] = {}
        # To the ledger. An earlier life may have died before it had said that calls wait no more.
        self._said: dict[str, bytes] | None = None if state.tenant.has_asked else {}
        state.asks_changed = self.look

    # answers

    def answer(self, event: Event, who: Answerer = OF_CHAT, channel: str = CHAT) -> bool:
        """Take in an answer to a call. Returns whether the call waited for it: the first answer counts. Refused, typed, if this one may
        not answer."""
        turn = next((each for each in self._state.open.values() if self._waits_for(each, event)), None)
        if turn is None or self._left_ms(turn) <= 0:
            return False
        is_approval = event["type"] == "tool-approval-response"
        part = next(part for part in self._waiting_calls(turn) if part["toolCallId"] == event["toolCallId"])
        check_may_say(event, part, who)
        asked = self._asked(turn, part, APPROVAL if is_approval else CLIENT_TOOL)
        value = pack_value("value", event["approved"] if is_approval else None)
        by = who.name, sorted(who.groups), who.is_operator, who.is_admin
        said = AnswerAsk("", 0, self._state.tenant.dice.token(), "", *by, channel, value, None)
        self._take(asked, said, event)
        return True

    def decided(self, ask_id: str, said: AnswerAsk) -> AskRow:
        """Take in an answer to a question of the ledger's list. Returns the question as it stands then. Refused, typed, if it does not
        count."""
        asked = next((each for each in self._all_asked() if self._id(each) == ask_id), None)
        if asked is None or self._left_ms(asked.turn) <= 0:
            return self._closed(ask_id, said)
        if not asked.call.ask.has_answer(said.answer_id):
            call_id, value = asked.call.call_id, unpack_value(said.value)
            event: Event = {"type": "tool-output-available", "toolCallId": call_id, "output": value}
            if asked.call.kind == APPROVAL:
                by: JsonObject = {"who": said.who, "channel": said.channel, "atMs": self._state.tenant.now_ms()}
                event = {"type": "tool-approval-response", "toolCallId": call_id, "approved": value, "by": by}
            asked = self._take(asked, said, event)
        return self._told(ask_id, asked.call)

    def approvals(self, request_id: str) -> list[AskRow]:
        # The open questions about approvals, as the ledger's list has them.
        asked = [each for each in self._all_asked() if each.call.kind == APPROVAL]
        return [self._told(self._id(each), each.call) for each in asked if each.turn.request_id == request_id]

    def _closed(self, ask_id: str, said: AnswerAsk) -> AskRow:
        gone = "its turn has ended, or waits for it no more"
        for turn in [*self._state.open.values(), *self._state.store.turns()]:
            for key, fields in turn.asks.items():
                kind, _, call_id = key.partition(" ")
                if call_ask_id(self._state.origin_of(turn), key) != ask_id:
                    continue
                call = AskedCall(call_id, kind, "", turn.run_id, AskRecord.from_plain(fields))
                if not call.ask.has_answer(said.answer_id):
                    checked_answer(call.ask, ask_id, said, self._state.tenant.now_ms(), gone)
                return self._told(ask_id, call)
        raise AskClosed("ask_id", f"{ask_id} is closed: {gone}")

    def _told(self, ask_id: str, call: AskedCall) -> AskRow:
        return call_told(self._state.tenant.agent_id, ask_id, call, self._state.tenant.now_ms())

    def _take(self, asked: _Asked, said: AnswerAsk, event: Event) -> _Asked:
        turn, now_ms = asked.turn, self._state.tenant.now_ms()
        call = asked.call._replace(ask=asked.call.ask.by_now(now_ms))
        tool = self._state.toolset().get(call.tool)
        fits = None if tool is None or call.kind != APPROVAL else tool.intake.checked
        edited, closes = checked_answer(call.ask, self._id(asked), said, now_ms, "", fits)
        value = said.value if call.kind == APPROVAL else _NOTHING  # what a call came to stands in its message
        given = GivenAnswer(said.who, value, edited, said.channel, now_ms, said.answer_id)
        ask = call.ask.answered(given, closes=closes)
        turn.asks[_key(call)] = [*ask._replace(args=None)]  # they stand in the message too
        if edited is not None:
            event["input"] = unpack_value(edited)
        if closes:
            self._goes_on(turn, event)
        else:
            self._state.store.write(turn, then=self.look)
        return asked._replace(call=call._replace(ask=ask))

    def _goes_on(self, turn: Turn, event: Event) -> None:
        stream = self._state.stream_of(turn)
        stream.add(event)
        self._state.add_now(stream, [stream.message])  # a client that loads the conversation now does not ask again
        if not self._waiting_calls(turn) and turn.apply(TurnEvent.ANSWERED):
            turn.parked_at_ms = 0
            # This is no interruption, because nothing was under way, and an answer wants the turn, whatever was said since.
            self._state.ours.add(turn.request_id)
            turn.user_message_id = self._state.transcript.newest_user_id
        stream.flush(then=self._play_on)

    def _play_on(self) -> None:
        self._play()
        self.look()

    # what the ledger is told of

    def look(self) -> None:
        """Tell the ledger which calls wait now, if these are others than before, and deny those whose time is over. What is looked at
        is durable."""
        tenant = self._state.tenant
        if tenant.is_leaving or (not self._state.open and self._said == {}):
            return
        asked = {self._id(each): each.call for each in self._all_asked()}
        ends = [call.ask.expires_at_ms for call in asked.values() if call.ask.expires_at_ms]
        tenant.alarms.set(EXPIRY, min(ends, default=None), self._expire)
        said = {ask_id: call.body() for ask_id, call in asked.items()}
        if said != self._said:
            self._said, tenant.has_asked = said, True
            home = pool_spec(type(tenant.agent), tenant.services.package)
            tenant.push(AskCalls(tenant.agent_id, tenant.incarnation, said, home))

    def _expire(self) -> None:
        now_ms = self._state.tenant.now_ms()
        for turn, _, call in self._all_asked():
            if 0 < call.ask.expires_at_ms <= now_ms:
                turn.asks[_key(call)] = [*call.ask.closed(AskStatus.EXPIRED, now_ms)._replace(args=None)]
                denied: Event = {"type": "tool-approval-response", "toolCallId": call.call_id, "approved": False}
                self._goes_on(turn, {**denied, "reason": NO_ANSWER_IN_TIME})
        self.look()

    def _all_asked(self) -> list[_Asked]:
        # A call waits for an approval, or for a client when nothing else of its turn is under way.
        found: list[_Asked] = []
        for turn in self._state.open.values():
            for part in self._waiting_calls(turn):
                if part["state"] == ToolState.APPROVAL_REQUESTED:
                    found.append(self._asked(turn, part, APPROVAL))
                elif turn.status is TurnStatus.PARKED:
                    found.append(self._asked(turn, part, CLIENT_TOOL))
        return found

    def _asked(self, turn: Turn, part: Part, kind: str) -> _Asked:
        call_id, tool = part["toolCallId"], tool_name(part)
        known = turn.asks.get(f"{kind} {call_id}")
        ask = AskRecord.from_plain(known) if known else ANYBODY.asked(turn.parked_at_ms or turn.attempt_at_ms)
        question, schema = (_MAY_IT.format(tool), YES_OR_NO) if kind == APPROVAL else (_WHAT_IS_IT.format(tool), _ANY)
        about: JsonObject = part.get("approval", {}).get(
            "descriptor", {}
        )  # what the call, or its toolset, says of why it asks
        args, note = None, ", ".join(f"{name}: {value}" for name, value in about.items())[:1_000]
        try:
            args = pack_value("args", part.get("input"), self._state.tenant.limits.progress_bytes_max)
        except TooLarge as problem:
            note = f"{note} The call's arguments are too large to be shown here ({problem.problem}).".strip()
        digest = digest_of(pack([question, schema, pack(part.get("input")), ask.to, ask.people, ask.self_answer]))
        ask = ask._replace(question=question, schema=schema, args=args, note=note, digest=digest)
        return _Asked(turn, part, AskedCall(call_id, kind, tool, turn.run_id, ask))

    def _id(self, asked: _Asked) -> str:
        return call_ask_id(self._state.origin_of(asked.turn), _key(asked.call))

    def waited_for(self, turn: Turn) -> list[str]:
        return [str(part["toolCallId"]) for part in self._waiting_calls(turn)]

    def words(self) -> list[str]:
        agent, parked = self._state.tenant.agent_id, TurnStatus.PARKED
        return [
            f"turn {turn.request_id} of {agent} waits for a person: {'; '.join(map(_words, self._waiting_calls(turn)))}"
            for turn in self._state.open.values()
            if turn.status is parked
        ]

    def are_waited_for(self) -> bool:
        return bool(self.imported()) or any(map(self._waiting_calls, self._state.open.values()))

    def imported(self) -> list[Part]:
        # No turn has made the calls of an imported answer.
        leaf = self._state.transcript.leaf
        if leaf is None or leaf["role"] != "assistant":
            return []
        if any(turn.message_id == leaf["id"] or turn.trigger == "continue" for turn in self._state.open.values()):
            return []
        return waiting_calls(leaf["parts"], self._state.toolset().client_names)

    async def answered_by(self, turn: Turn) -> None:
        """A person has sent a message. It answers the questions of parked turns that the author's repair makes a part of the talk (seed
        000): each such turn ends, with the repaired part."""
        if not turn.is_of_a_person:
            return
        for parked in [each for each in self._state.open.values() if each.status is TurnStatus.PARKED]:
            if self.is_talk(parked):
                parked.apply(TurnEvent.ANSWERED)
                await self._close(parked, _talked)

    def is_talk(self, turn: Turn) -> bool:
        # Such a turn waits for nothing but words, so a message of a person answers it.
        return turn.status is TurnStatus.PARKED and all(map(self._is_talk, self._waiting_calls(turn)))

    def _is_talk(self, part: Part) -> bool:
        if part.get("state") == "approval-requested":
            return False
        new, problem = tried_now(lambda: self._state.agent.repair_interrupted_tool_part(part))
        return problem is None and isinstance(new, dict) and new != default_repair(part)

    def _waits_for(self, turn: Turn, event: Event) -> bool:
        """Whether a turn waits for this answer. An approved call waits for its result, and for no second approval; one whose result
        comes from elsewhere has begun, and waits for none."""
        waiting = [part for part in self._waiting_calls(turn) if part["toolCallId"] == event["toolCallId"]]
        if event["type"] != "tool-approval-response":
            return bool(waiting)
        elsewhere = deferred_ids(self._state.stream_of(turn).parts)
        return any(part["state"] != "approval-responded" and part["toolCallId"] not in elsewhere for part in waiting)

    def _waiting_calls(self, turn: Turn) -> list[Part]:
        if turn.request_id not in self._state.open:
            return []
        brought = {tool.name for tool in client_tools(turn.options.get("client_tools", ()))}
        return waiting_calls(self._state.stream_of(turn).parts, self._state.toolset().client_names | brought)

    # deadlines

    def watch(self, turn: Turn) -> None:
        if math.isfinite(self._left_ms(turn)):
            self._watched[turn.request_id] = turn
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        # By the wall clock of this moment, which may have been set since the alarm was.
        if self._state.tenant.is_leaving:
            return
        for key, turn in list(self._watched.items()):
            left_ms = self._left_ms(turn)
            if left_ms <= 0:
                self._state.tenant.spawn(self._close(turn, self._unanswered))
            if left_ms <= 0 or math.isinf(left_ms):
                del self._watched[key]
        left_ms = min(map(self._left_ms, self._watched.values()), default=math.inf)
        at_ms = math.ceil(self._state.tenant.now_ms() + left_ms) if math.isfinite(left_ms) else None
        self._state.tenant.alarms.set(PART, at_ms, self._look, wakes=False)

    def _left_ms(self, turn: Turn) -> float:
        # Below 0 it is too late for an answer.
        if turn.status is not TurnStatus.PARKED or self._state.open.get(turn.request_id) is not turn:
            return math.inf
        config, _ = tried_now(lambda: ChatRecovery.of(self._state.agent.chat_recovery))
        if config is None:
            return math.inf
        return turn.parked_at_ms + config.parked_deadline_ms - self._state.tenant.now_ms()

    async def _unanswered(self, live: LiveTurn) -> TurnOutcome:
        outcome = TurnOutcome(TurnEvent.FAILED, UNANSWERED, "awaiting_client_deadline", stage="recovery")
        return await reported(self._state, live.turn, outcome)


_MAY_IT, _WHAT_IS_IT = "May {} be called like this?", "What did {} come to?"
_ANY: Final = pack_value("schema", {})
_NOTHING: Final = pack_value("value", None)


def _key(call: AskedCall) -> str:
    # A call of a client's tool may need approval first; those are two questions.
    return f"{call.kind} {call.call_id}"


def _words(part: Part) -> str:
    verb = "respond_to_approval" if part.get("state") == ToolState.APPROVAL_REQUESTED else "resolve_tool_call"
    return f"call {part['toolCallId']} of {tool_name(part)} is answered by {verb}"


def check_may_say(event: Event, part: Part, who: Answerer) -> None:
    """Raises `AnswerForbidden` for a result of a call that waits for approval. If it is allowed it is made, and comes to what it does:
    only an operator says so without it."""
    is_result = event["type"] != "tool-approval-response"
    if is_result and part.get("state") == ToolState.APPROVAL_REQUESTED and not who.is_operator:
        raise AnswerForbidden(
            "who", f"{who.name} may not say what a call comes to before it is approved: {_words(part)}"
        )


async def _talked(_live: LiveTurn) -> TurnOutcome:
    return TurnOutcome(TurnEvent.COMPLETED, reason="answered_by_message")
