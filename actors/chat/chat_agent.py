"""The chat agent: an agent with a transcript, a model and tools.

    class Assistant(ChatAgent):
        model = "openai:gpt-5"
        instructions = "You answer questions about the files of this project."

        def tools(self):
            return [read_file, agent_tool(Researcher, description="Research one topic in depth.")]

    result = runtime.agent(Assistant, "alice").chat("What does main.py do?", callback)

A turn survives the process, the provider and the network (`actors.chat.turns`, `play`); a tool call is a run of its own (`toolbox`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypedDict, Unpack, cast

from perdure.actors.agent.exposing import Marking, exposed
from perdure.actors.chat.callback import Caller, follow, refused
from perdure.actors.chat.chat_hooks import ChatHooks
from perdure.actors.chat.conversation import Conversation
from perdure.actors.chat.messages import Messages, as_messages, checked_data
from perdure.actors.chat.plain_data import checked_text
from perdure.actors.chat.turn import ActiveTurn, TurnResult
from perdure.actors.jobs.fiber_context import CURRENT
from perdure.actors.life.results import MilestoneInfo, RunInfo, RunResult
from perdure.actors.life.run_context import RunContext
from perdure.ledger import digest_of, pack, unpack
from perdure.policies import Event, Json, JsonObject

Afar = Callable[..., object]


def afar(function: Afar) -> Marking:
    """Give a method a part that is done at the caller's side, instead of one call."""

    def mark(method: Any) -> Any:
        method.__perdure_afar__ = function
        return method

    return cast("Marking", mark)


async def _ask_and_follow(
    trigger: str,
    caller: Caller,
    messages: Messages | None = None,
    callback: object = None,
    **options: Unpack[TurnOptions],
) -> TurnResult:
    """Ask for a turn under an id that is known here, so that it can be asked for again, and follow it."""
    request_id = options.pop("request_id", None) or caller.token()
    told = await caller.call("_perdure_begin_turn", trigger, messages, request_id, options)
    if told["reason"] == "dropped":
        return await refused(caller, told, callback)
    return await follow(caller, request_id, callback, opening=told)


async def _continue(caller: Caller, callback: object = None, **options: Unpack[TurnOptions]) -> TurnResult:
    return await _ask_and_follow("continue", caller, None, callback, **options)


async def _follow(caller: Caller, request_id: str, callback: object = None, *, first: int = 0) -> TurnResult:
    return await follow(caller, request_id, callback, first, was_accepted=first > 0)  # who has heard of it knows it


async def _submit(caller: Caller, messages: Messages, **options: Unpack[TurnOptions]) -> dict[str, Any]:
    request_id = options.pop("request_id", None)
    if request_id is None and not options.get("idempotency_key"):
        request_id = caller.token()
    told: dict[str, Any] = await caller.call("_perdure_accept_turn", "submission", messages, request_id, options)
    return told


class TurnOptions(TypedDict, total=False):
    """What may be said of a turn beside its messages.

    Attributes:
        request_id: names the turn. The same id with the same content is the same turn.
        idempotency_key: the same for who has a key of their own, such as a mail's.
        metadata: plain data that stays with the turn; `active_turn` shows it.
        client_tools: tools that the client executes: `[{name, description, parameters}]`.
        chat_stream_stall_timeout_ms: in place of the class's.
    """

    request_id: str | None
    idempotency_key: str | None
    metadata: Json
    client_tools: list[JsonObject]
    chat_stream_stall_timeout_ms: float


class ChatAgent(ChatHooks):
    """A chat: turns one after the other, each durable from its acceptance to its end. What may be said of it is with `ChatHooks`."""

    # asking for turns

    @afar(partial(_ask_and_follow, "chat"))
    async def chat(self, message: Messages, callback: object = None, **options: Unpack[TurnOptions]) -> TurnResult:
        """Send a message and follow the answer; see `StreamCallback`. Returns when the attempt that the callback sees has ended.

        Args:
            message: a text, a message, or a list of messages.
            callback: is told of the stream; may be None.
            **options: see `TurnOptions`.
        """
        self._perdure_conversation.refuse_nested("chat")
        return await _ask_and_follow("chat", self._perdure_conversation.local_caller, message, callback, **options)

    @afar(partial(_ask_and_follow, "save"))
    async def save_messages(self, messages: Messages, **options: Unpack[TurnOptions]) -> TurnResult:
        """Add messages and wait for the turn that they bring about."""
        self._perdure_conversation.refuse_nested("save_messages")
        return await _ask_and_follow("save", self._perdure_conversation.local_caller, messages, None, **options)

    @afar(_continue)
    async def continue_last_turn(self, callback: object = None, **options: Unpack[TurnOptions]) -> TurnResult:
        """Go on with the newest message of the assistant; skipped if the newest message is none, or waits for a person."""
        self._perdure_conversation.refuse_nested("continue_last_turn")
        return await _continue(self._perdure_conversation.local_caller, callback, **options)

    @afar(_submit)
    async def submit_messages(self, messages: Messages, **options: Unpack[TurnOptions]) -> dict[str, Any]:
        """Ask for a turn and come back as soon as it is durable; inside a handler it is part of the handler's transaction.

        Returns what `inspect_turn` gives, and `accepted`: whether the turn is new. The same `request_id` or `idempotency_key` with the
        same content is the same turn; with other content it is `ConflictingRequest`.
        """
        return await _submit(self._perdure_conversation.local_caller, messages, **options)

    @afar(_follow)
    async def attach(self, request_id: str, callback: object = None, *, first: int = 0) -> TurnResult:
        """Follow a turn from an event's number on, after an interruption or from elsewhere."""
        return await _follow(self._perdure_conversation.local_caller, request_id, callback, first=first)

    @exposed(repeatable=True)
    async def _perdure_accept_turn(self, trigger: str, messages: Json, request_id: Json, options: Json) -> Json:
        """Make a turn durable, or find it. What `submit_messages` does."""
        given = cast("Mapping[str, Any]", options)
        return cast("Json", self._perdure_conversation.accept_request(trigger, messages, request_id, given))

    @exposed(repeatable=True)
    async def _perdure_begin_turn(self, trigger: str, messages: Json, request_id: Json, options: Json) -> Json:
        """`_perdure_accept_turn`, and at once the answer of the first `_perdure_follow_turn`. What `chat` and the others do first."""
        given = cast("Mapping[str, Any]", options)
        accepted = self._perdure_conversation.accept_request(trigger, messages, request_id, given)
        if accepted["reason"] == "dropped":
            return cast("Json", accepted)
        views = self._perdure_conversation.turns.views
        return cast("Json", views.told(*await views.opening(str(accepted["request_id"]))))

    @exposed(repeatable=True)
    async def _perdure_follow_turn(self, request_id: str, first: int) -> Any:
        """The events of a turn from a number on, and how far it is. What `chat` and the others do then."""
        views = self._perdure_conversation.turns.views
        return views.told(*await views.follow(request_id, first))

    # steering

    @exposed(repeatable=True)
    async def cancel_chat(self, request_id: str, reason: str = "cancelled") -> bool:
        """Cancel a turn and its tools. Durable on return; whether it was still open."""
        return await self._perdure_conversation.turns.cancel(request_id, reason)

    @exposed(repeatable=True)
    async def cancel_all_chats(self, reason: str = "cancelled") -> int:
        """Cancel every open turn; returns how many there were."""
        return sum(
            [
                await self._perdure_conversation.turns.cancel(request_id, reason)
                for request_id in list(self._perdure_conversation.state.open)
            ]
        )

    @exposed(repeatable=True)
    async def clear(self) -> None:
        """Cancel everything and forget the conversation: messages, turns, streams. Not from inside a turn."""
        self._perdure_conversation.refuse_nested("clear", is_waiting=False)
        await self._perdure_conversation.clear()

    @exposed(repeatable=True)
    async def resolve_tool_call(self, call_id: str, output: Json = None, error: str | None = None) -> bool:
        """The answer to a call that the client executes. Whether it was waited for; the first answer counts."""
        words = (
            None
            if error is None
            else checked_text("error", error) or "The client did not execute this call, and gave no reason."
        )
        event: Event = (
            {"type": "tool-output-error", "toolCallId": call_id, "errorText": words}
            if words
            else {"type": "tool-output-available", "toolCallId": call_id, "output": checked_data("output", output)}
        )
        return self._perdure_conversation.turns.answers.answer(event)

    @exposed(repeatable=True)
    async def respond_to_approval(self, call_id: str, approved: bool, reason: str | None = None) -> bool:
        """A person's answer to a call that needs approval. Whether it was waited for; the first answer counts."""
        event: Event = {"type": "tool-approval-response", "toolCallId": call_id, "approved": approved}
        if reason is not None:
            event["reason"] = reason
        return self._perdure_conversation.turns.answers.answer(event)

    @exposed(repeatable=True)
    async def add_messages(self, messages: Messages) -> int:
        """Add messages to the transcript, or replace those of the same id, without a turn. Returns how many."""
        return self._perdure_conversation.add(as_messages(messages, new_id=self._perdure_conversation.state.token))

    # looking

    @exposed(repeatable=True)
    async def get_messages(self, limit: int | None = None, before: str | None = None) -> list[dict[str, Any]]:
        """The transcript, oldest message first: a copy. Of a long one the newest `limit`, and those in front of a message's id."""
        copy: list[dict[str, Any]] = unpack(pack(self._perdure_conversation.messages(limit, before)))
        return copy

    @exposed(repeatable=True)
    async def inspect_turn(self, request_id: str) -> Any:
        """What is known of a turn, or None."""
        return self._perdure_conversation.inspect(request_id)

    @exposed(repeatable=True)
    async def list_turns(self, status: Json = None, limit: int = 50) -> list[dict[str, Any]]:
        """The newest turns, oldest of them first."""
        return self._perdure_conversation.list(status, limit)

    @exposed(repeatable=True)
    async def delete_turns(self, status: Json = None, ended_before: int | None = None, limit: int = 100) -> int:
        """Forget ended turns and their streams; their messages stay. Returns how many."""
        return self._perdure_conversation.delete(status, ended_before, limit)

    @exposed(repeatable=True)
    async def has_pending_interaction(self) -> bool:
        """Whether a call waits for the client or for an approval."""
        return self._perdure_conversation.turns.answers.are_waited_for()

    @exposed(repeatable=True)
    async def wait_until_stable(self, timeout_ms: float | None = None) -> bool:
        """Wait until no turn is open and no person is waited for; False if that takes longer. Not from inside a turn or a transaction."""
        self._perdure_conversation.refuse_nested("wait_until_stable")
        return await self._perdure_conversation.stable(timeout_ms)

    @property
    def active_turn(self) -> ActiveTurn | None:
        """The turn that is being played, for `get_instructions`, `get_model` and the methods that are tools; None between turns."""
        playing = self._perdure_conversation.turns.playing
        return None if playing is None else playing.live.turn.shown

    def stash(self, data: object) -> bool:
        """Remember a value with the fiber that the code belongs to, or else with the turn that is being played; its recovery is given it.
        Durable on return."""
        playing = self._perdure_conversation.turns.playing
        if playing is None or CURRENT.get() is not None:
            return super().stash(data)
        pack(data)
        playing.live.turn.stashed = cast("Json", data)
        self._perdure_conversation.state.store.write(playing.live.turn)
        return True

    # as a child, and as a parent

    async def run(self, input: Any, run: RunContext) -> Any:
        """A run of this agent is one turn of it, under the run's id."""
        message = self.format_agent_tool_input(input, run)
        turn = self._perdure_conversation.request("agent-tool", message, run.run_id, {})
        turn.run_id = run.run_id
        ended = await self._perdure_conversation.turns.ended(
            self._perdure_conversation.turns.accept(turn, run=run).request_id
        )
        result = self._perdure_conversation.turns.views.result_of(ended)
        if not result.ok:
            raise ChatTurnFailed(result.status, result.error)
        return self.get_agent_tool_output(run.run_id, result)

    async def _perdure_notify(self, run: RunInfo, result: RunResult) -> None:
        """A detached run with `notify` has ended: a message of the user tells so, once, and the model answers."""
        text = await self.format_detached_completion(run, result)
        if text.strip():
            self._perdure_conversation.notify(run, text)

    async def _perdure_react(self, run: RunInfo, milestone: MilestoneInfo) -> None:
        """A milestone that the model is to answer."""
        text = await self.format_detached_milestone(run, milestone)
        if text.strip():
            self._perdure_conversation.notify(run, text)

    async def _perdure_narrate(self, run: RunInfo, milestone: MilestoneInfo) -> None:
        """A milestone that is only told."""
        text = await self.format_detached_milestone(run, milestone)
        if text.strip():
            self._perdure_conversation.narrate(run, text)

    # ours

    @property
    def _perdure_conversation(self) -> Conversation:
        """The conversation, in this life of the agent."""
        return self._perdure.part(
            Conversation, lambda: Conversation(self, self._perdure, self._perdure_restart_conversation)
        )

    def _perdure_woken(self) -> None:
        """The agent has come up: what an earlier life owed is taken up, beside its start and not in it."""
        self._perdure_conversation.turns.wake()

    def _perdure_restart_conversation(self) -> None:
        """Begin with the conversation again, from what is durable."""
        self._perdure.drop_part(Conversation)
        self._perdure_woken()


class ChatTurnFailed(Exception):
    """The turn of a run did not complete."""

    def __init__(self, status: str, error: str) -> None:
        super().__init__(status, error)
        self.status, self.error = status, error

    def __str__(self) -> str:
        return self.error or f"the turn was {self.status}"


__all__ = ["ChatAgent", "ChatTurnFailed", "digest_of"]
