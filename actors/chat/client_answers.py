"""The answers of clients and people to tool calls, and how long a turn waits for them.

A turn waits for ever, or for `ChatRecovery.parked_deadline_ms` (spec W-28). A parked turn keeps nobody awake. Its deadline acts on time if
the agent is awake, and else when it next wakes, before anybody can look at the turn or answer it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine

from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.live_turn import LiveTurn
from perdure.actors.chat.turn import Turn
from perdure.actors.chat.turn_ends import Outcome, reported
from perdure.actors.code.author_call import tried_now
from perdure.policies import (
    ChatRecovery,
    Event,
    Part,
    ToolState,
    TurnEvent,
    TurnStatus,
    default_repair,
    deferred_ids,
    tool_name,
    waiting_calls,
)

Ending = Callable[[LiveTurn], Awaitable[Outcome]]
PART = "questions"
PEOPLES = frozenset({"chat", "save", "submission"})
UNANSWERED = "Nobody has answered in time, so the turn has ended."


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

    # answers

    def answer(self, event: Event) -> bool:
        """Take in an answer to a call. Returns whether the call waited for it: the first answer counts."""
        turn = next((each for each in self._state.open.values() if self._waits_for(each, event)), None)
        if turn is None or self._left_ms(turn) <= 0:
            return False
        stream = self._state.stream_of(turn)
        stream.add(event)
        self._state.add_now(stream, [stream.message])  # who loads the conversation now is not asked again
        if not self._waiting_calls(turn) and turn.apply(TurnEvent.ANSWERED):
            turn.parked_at_ms = 0
            # This is no interruption, because nothing was under way, and whoever answers wants the turn, whatever was said since.
            self._state.ours.add(turn.request_id)
            turn.user_message_id = self._state.transcript.newest_user_id
        stream.flush(then=self._play)
        return True

    def waited_for(self, turn: Turn) -> list[str]:
        """The ids of the calls of an open turn that wait for a client's result or an approval."""
        return [str(part["toolCallId"]) for part in self._waiting_calls(turn)]

    def words(self) -> list[str]:
        """Which turns wait for whom, and what answers each call, for people."""
        agent, parked = self._state.tenant.agent_id, TurnStatus.PARKED
        return [
            f"turn {turn.request_id} of {agent} waits for a person: {'; '.join(map(_words, self._waiting_calls(turn)))}"
            for turn in self._state.open.values()
            if turn.status is parked
        ]

    def are_waited_for(self) -> bool:
        """Whether a call waits for a client's result or an approval (spec §7), in an open turn or in the newest message."""
        open_turns = [turn for turn in self._state.open.values() if turn.segments or turn.attempt]
        return bool(self.imported()) or any(self._waiting_calls(turn) for turn in open_turns)

    def imported(self) -> list[Part]:
        """The calls of the newest message that wait for the client though no turn has made them: an imported answer."""
        leaf = self._state.transcript.leaf
        if leaf is None or leaf["role"] != "assistant":
            return []
        if any(turn.message_id == leaf["id"] or turn.trigger == "continue" for turn in self._state.open.values()):
            return []
        names = frozenset(tool.name for tool in self._state.toolset() if tool.kind == "client")
        return waiting_calls(leaf["parts"], names)

    async def answered_by(self, turn: Turn) -> None:
        """A person has sent a message. It answers the questions of parked turns that the author's repair makes a part of the talk (seed
        000): each such turn ends, with the repaired part."""
        if turn.trigger not in PEOPLES or not any(each["role"] == "user" for each in turn.messages):
            return
        for parked in [each for each in self._state.open.values() if each.status is TurnStatus.PARKED]:
            if all(self._is_talk(part) for part in self._waiting_calls(parked)):
                parked.apply(TurnEvent.ANSWERED)
                await self._close(parked, _talked)

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
        """The calls of a turn that wait for the client."""
        if not turn.segments and turn.request_id not in self._state.open:
            return []
        own = [tool for tool in self._state.toolset() if tool.kind == "client"]
        names = frozenset(tool.name for tool in (*own, *self._state.client_tools(turn)))
        return waiting_calls(self._state.stream_of(turn).parts, names)

    # deadlines

    def watch(self, turn: Turn) -> None:
        """Watch the deadline of a parked turn."""
        if math.isfinite(self._left_ms(turn)):
            self._watched[turn.request_id] = turn
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        """End the turns whose deadline has come, by the wall clock of this moment."""
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
        """How long the turn still waits. Below 0 it is too late for an answer."""
        if turn.status is not TurnStatus.PARKED or self._state.open.get(turn.request_id) is not turn:
            return math.inf
        config, _ = tried_now(lambda: ChatRecovery.of(self._state.agent.chat_recovery))
        if config is None:
            return math.inf
        return turn.parked_at_ms + config.parked_deadline_ms - self._state.tenant.now_ms()

    async def _unanswered(self, live: LiveTurn) -> Outcome:
        outcome = Outcome(TurnEvent.FAILED, UNANSWERED, "awaiting_client_deadline", stage="recovery")
        return await reported(self._state, live.turn, outcome)


def _words(part: Part) -> str:
    verb = "respond_to_approval" if part.get("state") == ToolState.APPROVAL_REQUESTED else "resolve_tool_call"
    return f"call {part['toolCallId']} of {tool_name(part)} is answered by {verb}"


async def _talked(_live: LiveTurn) -> Outcome:
    return Outcome(TurnEvent.COMPLETED, reason="answered_by_message")
