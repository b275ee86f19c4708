"""The chat agent: an agent with a transcript, a model and tools.

    class Assistant(ChatAgent):
        model = "openai:gpt-5"
        instructions = "You answer questions about the files of this project."

        def tools(self):
            return [read_file, agent_tool(Researcher, description="Research one topic in depth.")]

    result = runtime.agent(Assistant, "alice").chat("What does main.py do?", callback)

A turn survives the process, the provider and the network (`actors.chat.turns`, `play`). A tool call is a run of its own (`live_turn`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from inspect import formatannotation
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Final, Generic, ParamSpec, Unpack, cast

from pydantic_core import to_jsonable_python
from typing_extensions import TypeVar

from perdure.actors.agent.agent import Agent
from perdure.actors.agent.exposing import Events, Marking, begun_at_host, exposed, steering, verb, watching
from perdure.actors.chat.chat_messages import Messages, as_messages, checked_data
from perdure.actors.chat.conversation import Conversation
from perdure.actors.chat.conversation_state import BOUNDS_OF_CHATS, STALL_MS
from perdure.actors.chat.feed import FeedEvent
from perdure.actors.chat.followers import (
    SteerOptions,
    TurnOptions,
    ask_and_follow,
    continue_and_follow,
    follow_feed,
    follow_turn,
    regenerate_and_follow,
    steer,
    submit,
)
from perdure.actors.chat.model import load_library
from perdure.actors.chat.plain_data import checked_text
from perdure.actors.chat.tools import Toolset
from perdure.actors.chat.turn import ActiveTurn, ChatRecoveryContext, SteerReceipt, TurnResult
from perdure.actors.chat.turn_failures import ChatTurnFailed
from perdure.actors.code.author_call import SUMMARY_CHARS_MAX, hook, overrides, tried_now, without_middle
from perdure.actors.code.signatures import run_shapes
from perdure.actors.jobs.fiber_context import CURRENT
from perdure.actors.life.results import MilestoneInfo, RunInfo, RunResult
from perdure.actors.life.run_context import RunContext
from perdure.ledger import AnswerAsk, BadRequest, Secret, Status, pack, preview_of, unpack
from perdure.policies import Answerer, ChatRecovery, ContextOverflow, Event, Json, Message, Part, default_repair

if TYPE_CHECKING:
    from pydantic_ai import Agent as LibraryAgent

    from perdure.actors.agent.exposing import Exposed


Answer = TypeVar("Answer", default=str)
P = ParamSpec("P")
T = TypeVar("T")


# ---------------------------------------------------------------- notices
# The messages that tell a chat of its detached runs.


NOTICE_CHARS_MAX: Final = 8_000
"""Of a structured result in the message that tells a chat of the end of a detached run."""


_ENDS: dict[str, str] = {
    Status.COMPLETED: "has completed",
    Status.ERROR: "has failed",
    Status.ABORTED: "was cancelled",
    Status.INTERRUPTED: "was interrupted, and its end is not known",
}


def _shown_result(result: RunResult) -> str:
    output = result.output_or(None)
    if isinstance(output, str) and result.summary == without_middle(output, SUMMARY_CHARS_MAX):
        return output
    if output is None or isinstance(output, str):
        return result.summary or output or ""
    whole = json.dumps(
        to_jsonable_python(output, by_alias=True, fallback=str), ensure_ascii=False, separators=(",", ":")
    )
    if not result.summary or whole == result.summary or result.summary == preview_of(json.loads(whole)):
        return without_middle(whole, NOTICE_CHARS_MAX)
    return f"{result.summary}\n\n{without_middle(whole, NOTICE_CHARS_MAX)}"


def _shown_name(run: RunInfo) -> str:
    name = (run.display or {}).get("name")
    return str(name) if name else run.agent_type.rpartition(":")[2]


def _check_text_fits(kind: type, text: object) -> None:
    gives = run_shapes(kind).gives
    if gives.annotation is str:
        return
    _, problem = tried_now(lambda: gives.encode("output", text, sys.maxsize))
    if isinstance(problem, BadRequest):
        words = (
            f"the text of its answer was given where {formatannotation(gives.annotation, kind.__module__)} is wanted"
        )
        raise BadRequest(
            "output", f"{words}; override `get_agent_tool_output`, which makes it of a `TurnResult`. {problem.problem}"
        )


# ---------------------------------------------------------------- chat agent


def afar(function: Callable[..., object]) -> Marking:
    # A verb whose function runs at the caller's side, instead of one call.
    return cast("Marking", _verb_with("__perdure_afar__", function))


def followed(
    function: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[[Callable[Concatenate[Any, P], AsyncGenerator[T, None]]], Exposed[P, AsyncGenerator[T, None], Events[T]]]:
    # The same for a verb whose events are iterated over.
    return cast("Callable[[Any], Any]", _verb_with("__perdure_followed__", function))


def _verb_with(name: str, function: object) -> object:
    def mark(method: Callable[..., object]) -> object:
        marked = verb(method)
        setattr(marked, name, function)
        return marked

    return mark


class ChatAgent(Agent, Generic[Answer]):
    """A chat: turns one after the other, each durable from its acceptance to its end.

    `Answer` is the output type of its runs: a class that overrides `get_agent_tool_output` names it, as `ChatAgent[Plan]`.

    Class attributes:
        model: a pydantic-ai model, or its name, such as `openai:gpt-5`.
        toolsets: toolsets of pydantic-ai, MCP servers among them, whose tools are added to those of `tools()`.
        model_key: the key of a named model, by reference; by default its provider looks for it in the environment.
        instructions: what the model is told before the conversation.
        max_steps: requests to the model that one turn may make.
        chat_recovery: the budgets of recovery after a death or a stall; with False such a turn ends.
        context_overflow: what becomes of a conversation that has grown too long for the model; with False the turn ends.
        chat_stream_stall_timeout_ms: after which a silent stream counts as broken; 0 never. A turn may set its own. By default 90 s.
            Keep-alives of the provider are no silence, for ten minutes without an event at most (if its HTTP client is one of httpx2).
        chat_first_token_timeout_ms: the limit of the first event of an answer, before which a model may think; keep-alives are no event.
            None takes the former, or ten minutes if that is the default.
        tool_timeout_ms: the time limit of a tool without its own, by default ten minutes; None for ever. Child agents have none.
        stands_alone: whether a call from outside may create a chat of this class. False for chats that are only children of runs.
        message_concurrency: what becomes of a message that comes while a turn is under way: `queue`, `latest`, `merge`, `drop`, or
            `{"strategy": "debounce", "debounce_ms": 750}`.
    """

    model: ClassVar[Any] = None
    model_key: ClassVar[Secret | None] = None
    instructions: ClassVar[str | None] = None
    toolsets: ClassVar[Sequence[Any]] = ()
    max_steps: ClassVar[int] = 50
    chat_recovery: ClassVar[ChatRecovery | bool] = ChatRecovery()
    context_overflow: ClassVar[ContextOverflow | bool] = ContextOverflow()
    chat_stream_stall_timeout_ms: ClassVar[float] = STALL_MS
    chat_first_token_timeout_ms: ClassVar[float | None] = None
    tool_timeout_ms: ClassVar[float | None] = 600_000
    message_concurrency: ClassVar[str | dict[str, Any]] = "queue"

    stands_alone: ClassVar[bool] = True

    _perdure_recalls_results: ClassVar[bool] = True
    _perdure_bounds = BOUNDS_OF_CHATS

    @classmethod
    def _perdure_check(cls) -> None:
        Toolset.declared(cls)

    @classmethod
    def prepare(cls) -> None:
        """Load the library of models."""
        load_library(cls.model)

    # what an author overrides

    @hook
    def tools(self) -> Sequence[object]:
        """The tools: functions marked with `@tool`, and what `agent_tool` and `client_tool` make. Marked methods are added."""
        return ()

    @hook
    def get_model(self) -> object:
        """The model of the next request. It may be async, as may the next two."""
        return self.model

    @hook
    def get_model_settings(self) -> dict[str, Any] | Awaitable[dict[str, Any] | None] | None:
        """Settings of the next request, as pydantic-ai names them: `temperature`, `max_tokens` and more."""
        return None

    @hook
    def get_instructions(self) -> str | Awaitable[str | None] | None:
        """What the model is told before the conversation."""
        return self.instructions

    @hook
    async def on_chat_response(self, response: dict[str, Any]) -> None:
        """Called after a turn that had begun: `request_id, status, message, error, continuation`. It may ask for turns and wait."""

    @hook
    async def on_chat_error(self, error: str, info: dict[str, Any]) -> str | None:
        """Called before a turn ends with an error; a returned text is shown instead. `info`: `request_id, stage, reason`."""

    @hook
    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, Any] | None:
        """Called when a turn is recovered after a death or a stall.

        `{"persist": False}` drops what was said so far, unless a tool has settled in it; `{"continue": False}` ends the turn;
        `{"answer": text}` completes it with an answer that the provider had stored.
        """

    @hook
    @verb
    async def summarize_messages(self, messages: list[dict[str, Any]]) -> str | None:
        """What the model is told from now on in place of these messages, the oldest of a conversation that has grown too long for it.

        By default the model is asked for a summary. The first message may be an earlier summary. None leaves the conversation as it is.
        """
        return await self._perdure_conversation.turns.compaction.ask_for_summary(cast("list[Message]", messages))

    @hook
    def repair_interrupted_tool_part(self, part: dict[str, Any]) -> dict[str, Any]:
        """The part that replaces a tool call without a result in the transcript: a settled tool part, or text.

        A question to the client for which it returns another part than the default is answered by the user's next message.
        """
        return cast("dict[str, Any]", default_repair(cast("Part", part)))

    @hook
    def format_agent_tool_input(self, input: Any, run: RunContext) -> Any:
        """The message of the user by which a run of this agent begins."""
        text = input.get("message") if isinstance(input, dict) and set(input) == {"message"} else input
        if isinstance(text, str):
            return text
        words = json.dumps(input, ensure_ascii=False, default=str)
        return {"role": "user", "parts": [{"type": "text", "text": words}]}

    @hook
    def get_agent_tool_output(self, result: TurnResult, run: RunContext) -> Answer:
        """The output of a run of this agent: the text of its answer."""
        return cast("Answer", result.text)

    @hook
    async def format_detached_completion(self, run: RunInfo, result: RunResult) -> str:
        """The message that tells this chat of the end of a detached run; an empty one is not sent."""
        detail = _shown_result(result) if result.ok else result.error
        what = f"The background run {run.run_id} ({_shown_name(run)}) {_ENDS.get(result.status, result.status)}."
        return f"{what}\n\n{detail}" if detail else what

    @hook
    async def format_detached_milestone(self, run: RunInfo, milestone: MilestoneInfo) -> str:
        """The message that tells this chat of a milestone; an empty one is not sent."""
        what = f"The background run {run.run_id} ({_shown_name(run)}) reached {milestone.name}."
        return f"{what} {milestone.message}" if milestone.message else what

    @property
    def library_agent(self) -> LibraryAgent[Any, Any] | None:
        """The agent of pydantic-ai that plays the turns (`DurableAgent`), if there is one."""
        return None

    @classmethod
    def _perdure_toolsets(cls) -> Sequence[Any]:
        return cls.toolsets

    @classmethod
    def _perdure_deps(cls) -> object:
        return None

    # asking for turns

    @afar(partial(ask_and_follow, "chat"))
    async def chat(self, message: Messages, callback: object = None, **options: Unpack[TurnOptions]) -> TurnResult:
        """Send a message and follow the answer, to the end of the attempt that the callback sees; without a callback, or with
        `follow=True`, to that of the turn. Unless `follow=True`, a turn that waits for a person is returned as `parked`: see `attach`.

        Args:
            message: a text, a message, or a list of messages.
            callback: is told of the stream, see `StreamCallback`; may be None.
            **options: see `TurnOptions`.
        """
        conversation = self._perdure_conversation.unnested("chat")
        return await ask_and_follow("chat", conversation.local_caller, message, callback, **options)

    @afar(partial(ask_and_follow, "save"))
    async def save_messages(self, messages: Messages, **options: Unpack[TurnOptions]) -> TurnResult:
        """Add messages and wait for the end of their turn."""
        conversation = self._perdure_conversation.unnested("save_messages")
        return await ask_and_follow("save", conversation.local_caller, messages, None, **options)

    @afar(continue_and_follow)
    async def continue_last_turn(self, callback: object = None, **options: Unpack[TurnOptions]) -> TurnResult:
        """Continue the newest answer. Skipped if the newest message is no answer, or waits for a person."""
        conversation = self._perdure_conversation.unnested("continue_last_turn")
        return await continue_and_follow(conversation.local_caller, callback, **options)

    @afar(regenerate_and_follow)
    async def regenerate(self, callback: object = None, **options: Unpack[TurnOptions]) -> TurnResult:
        """Have the newest answer, or that of `instead_of`, given again by a new turn. Skipped if the newest message is no answer."""
        conversation = self._perdure_conversation.unnested("regenerate")
        return await regenerate_and_follow(conversation.local_caller, callback, **options)

    @afar(submit)
    async def submit_messages(self, messages: Messages, **options: Unpack[TurnOptions]) -> dict[str, Any]:
        """Ask for a turn and return as soon as it is durable; inside a handler it is part of the handler's transaction.

        Returns what `inspect_turn` gives, and `accepted`: whether the turn is new. The same `request_id` or `idempotency_key` with the
        same content is the same turn; with other content it is `ConflictingRequest`.
        """
        return await submit(self._perdure_conversation.local_caller, messages, **options)

    @afar(steer)
    async def steer(self, message: str | Mapping[str, object], **options: Unpack[SteerOptions]) -> SteerReceipt:
        """Say something to the turn that is under way. Durable on return; inside a handler it is part of the handler's transaction.

        The turn reads it at its next step boundary: after the results of the tools of the step, before the next request to the model.
        There it stands in the answer as a part `data-steered`, for the model as a message of the user, in this request and all later ones.
        If the turn waits for a person, it is read once that goes on. If no turn is under way, or the turn comes to no further request
        (its last step was the answer, it failed, or it was cancelled), the message is the next one, and begins a turn of its own in its
        place in the queue: one of the two, never both and never neither, also through deaths. Several are read in their order.

        Another answer (`regenerate`) is asked for with these messages before it. `cancel_chat` with the id of the request takes the
        message back until it is read; `inspect_turn` tells what became of it. `message_concurrency` says nothing about it.

        Args:
            message: a text, or a message of the user.
            **options: see `SteerOptions`.
        """
        return await steer(self._perdure_conversation.local_caller, message, **options)

    @afar(follow_turn)
    async def attach(
        self, request_id: str, callback: object = None, *, first: int = 0, follow: bool | None = None
    ) -> TurnResult:
        """Follow a turn from an event's number on, after an interruption, a person's answer, or from elsewhere; `follow` as for `chat`."""
        caller = self._perdure_conversation.local_caller
        return await follow_turn(caller, request_id, callback, first=first, follow=follow)

    @followed(follow_feed)
    def feed(self, first: int = 0) -> AsyncGenerator[FeedEvent, None]:
        """Everything that happens in this conversation, whoever has begun it, from a number on: for `for` or `async for`, without an end.

        First what is durable, then live, across deaths. A slow consumer delays no other. See `FeedEvent`."""
        return follow_feed(self._perdure_conversation.local_caller, first)

    @watching
    async def _perdure_feed(self, first: int, hold_s: float) -> Any:
        return await self._perdure_conversation.feed.page(first, hold_s)

    @watching
    async def _perdure_standing(self, request_id: str = "") -> Any:
        return self._perdure_conversation.standing(request_id)

    @exposed(repeatable=True)
    async def _perdure_replace_messages(self, messages: Messages, is_trusted: Json) -> None:
        added = as_messages(messages, new_id=self._perdure.dice.token)
        self._perdure_conversation.replace_messages(added, is_trusted=is_trusted is True)

    @begun_at_host
    async def _perdure_accept_turn(self, trigger: str, messages: Json, request_id: Json, options: Json) -> Json:
        given = cast("Mapping[str, object]", options)
        return cast("Json", self._perdure_conversation.accept_request(trigger, messages, request_id, given))

    @begun_at_host
    async def _perdure_begin_turn(self, trigger: str, messages: Json, request_id: Json, options: Json) -> Json:
        # `_perdure_accept_turn` and the first `_perdure_follow_turn` in one call. `accepted` says whether the turn is new.
        given = cast("Mapping[str, object]", options)
        accepted = self._perdure_conversation.accept_request(trigger, messages, request_id, given)
        if accepted["reason"] == "dropped":
            return cast("Json", accepted)
        page = await self._perdure_conversation.turns.views.opening(str(accepted["request_id"]))
        return cast("Json", {**page, "accepted": accepted["accepted"]})

    @watching
    async def _perdure_follow_turn(self, request_id: str, first: int, *, awaits_people: bool = False) -> Any:
        # Answered at once if the turn waits for people and the caller does not.
        return await self._perdure_conversation.turns.views.follow(request_id, first, awaits_people=awaits_people)

    # steering

    @steering
    async def cancel_chat(self, request_id: str, reason: str = "cancelled") -> bool:
        """Cancel a turn and its tools. Durable on return. Returns whether it was open."""
        return await self._perdure_conversation.turns.cancel(request_id, reason)

    @steering
    async def cancel_all_chats(self, reason: str = "cancelled") -> int:
        """Cancel every open turn. Returns how many there were."""
        open_ids = list(self._perdure_conversation.state.open)
        return sum([await self._perdure_conversation.turns.cancel(request_id, reason) for request_id in open_ids])

    @steering
    async def clear(self) -> None:
        """Cancel everything and delete the conversation: messages, turns, streams. Not from inside a turn."""
        await self._perdure_conversation.unnested("clear", is_waiting=False).clear()

    @steering
    async def resolve_tool_call(self, call_id: str, output: Json = None, error: str | None = None) -> bool:
        """Answer a call that the client executes. Returns whether the call waited for it: the first answer counts."""
        return self._perdure_conversation.answer(_resolved(call_id, output, error))

    @steering
    async def respond_to_approval(self, call_id: str, approved: bool, reason: str | None = None) -> bool:
        """Answer a call that needs approval. Returns whether the call waited for it: the first answer counts."""
        return self._perdure_conversation.answer(_approved(call_id, approved, reason))

    # The same by a gateway, which knows who answers and by what way.

    @steering
    async def _perdure_resolve_tool_call(
        self, by: Json, channel: str, call_id: str, output: Json = None, error: str | None = None
    ) -> bool:
        return self._perdure_conversation.answer(_resolved(call_id, output, error), _answerer(by), channel)

    @steering
    async def _perdure_respond_to_approval(
        self, by: Json, channel: str, call_id: str, approved: bool, reason: str | None = None
    ) -> bool:
        return self._perdure_conversation.answer(_approved(call_id, approved, reason), _answerer(by), channel)

    @exposed(repeatable=True)
    def _perdure_answer_call(self, ask_id: str, said: bytes) -> Any:
        # The question is one of the ledger's list.
        return self._perdure.looked(
            lambda: self._perdure_conversation.turns.answers.decided(ask_id, AnswerAsk(*unpack(said)))
        )

    @steering
    async def add_messages(self, messages: Messages) -> int:
        """Add messages to the transcript, or replace those of the same id, without a turn. Returns how many."""
        return self._perdure_conversation.add(
            as_messages(messages, new_id=self._perdure_conversation.state.tenant.dice.token)
        )

    @steering
    async def delete_messages(self, message_ids: list[str]) -> int:
        """Delete messages from the transcript. Returns how many there were. Those of a turn under way cannot be deleted."""
        return self._perdure_conversation.delete_messages(message_ids)

    @steering
    async def _perdure_delete_messages(self, is_trusted: Json, message_ids: list[str]) -> int:
        return self._perdure_conversation.delete_messages(message_ids, is_trusted=is_trusted is True)

    # looking

    @steering
    async def get_messages(self, limit: int | None = None, before: str | None = None) -> list[dict[str, Any]]:
        """A copy of the transcript, oldest message first: the newest `limit`, or of those before a message's id."""
        copy: list[dict[str, Any]] = unpack(pack(self._perdure_conversation.messages(limit, before)))
        return copy

    @steering
    async def inspect_turn(self, request_id: str) -> Any:
        """What is known of a turn, or None."""
        return self._perdure_conversation.inspect(request_id)

    @steering
    async def list_turns(self, status: Json = None, limit: int = 50) -> list[dict[str, Any]]:
        """The newest turns, oldest of them first."""
        return self._perdure_conversation.list(status, limit)

    @steering
    async def delete_turns(self, status: Json = None, ended_before: int | None = None, limit: int = 100) -> int:
        """Delete ended turns and their streams; their messages stay. Returns how many."""
        return self._perdure_conversation.delete(status, ended_before, limit)

    @exposed(repeatable=True)
    def has_pending_interaction(self) -> bool:
        """Whether a call waits for the client or for an approval. In the agent it needs no `await`."""
        return self._perdure.looked(self._perdure_conversation.turns.answers.are_waited_for)

    @steering
    async def wait_until_stable(self, timeout_ms: float | None = None) -> bool:
        """Wait until no turn is open and no person is waited for; False if that takes longer. Not from inside a turn or a transaction."""
        return await self._perdure_conversation.unnested("wait_until_stable").stable(timeout_ms)

    @property
    def active_turn(self) -> ActiveTurn | None:
        """The turn that is being played, for `get_instructions`, `get_model` and the methods that are tools; None between turns."""
        playing = self._perdure_conversation.turns.playing
        return None if playing is None else playing.live.turn.shown

    def stash(self, data: object) -> bool:
        """Remember a value for the recovery of the current fiber, or else of the turn that is being played. Durable on return."""
        playing = self._perdure_conversation.turns.playing
        if playing is None or CURRENT.get() is not None:
            return super().stash(data)
        pack(data)
        playing.live.turn.stashed = cast("Json", data)
        self._perdure_conversation.state.store.write(playing.live.turn)
        return True

    # as a child, and as a parent

    async def run(self, input: Any, run: RunContext) -> Answer:
        """A run of this agent is one turn of it, under the run's id."""
        conversation, message = self._perdure_conversation, self.format_agent_tool_input(input, run)
        turn = conversation.request("agent-tool", message, run.run_id, {})
        turn.run_id, turn.began_by = run.run_id, run.began_by
        ended = await conversation.turns.ended(conversation.turns.accept(turn, run=run).request_id)
        result = conversation.turns.views.result_of(ended)
        if not result.ok:
            raise ChatTurnFailed(result.status, result.error)
        output = self.get_agent_tool_output(result, run)
        if type(self).run is ChatAgent.run and not overrides(type(self), "get_agent_tool_output"):
            _check_text_fits(type(self), output)
        return output

    async def _perdure_notify(self, run: RunInfo, result: RunResult) -> None:
        self._perdure_conversation.notify(run, await self.format_detached_completion(run, result))

    async def _perdure_react(self, run: RunInfo, milestone: MilestoneInfo) -> None:
        self._perdure_conversation.notify(run, await self.format_detached_milestone(run, milestone))

    async def _perdure_narrate(self, run: RunInfo, milestone: MilestoneInfo) -> None:
        self._perdure_conversation.narrate(run, await self.format_detached_milestone(run, milestone))

    @property
    def _perdure_conversation(self) -> Conversation:
        restart = self._perdure_restart_conversation
        return self._perdure.part(Conversation, lambda: Conversation(self, self._perdure, restart))

    def _perdure_woken(self) -> None:
        # The open turns of an earlier life are taken up beside the start of the agent and not in it.
        self._perdure_conversation.turns.wake()

    def _perdure_restart_conversation(self) -> None:
        self._perdure.drop_part(Conversation)
        self._perdure_woken()


def _answerer(by: Json) -> Answerer:
    return Answerer(*cast("list[Any]", by))


def _approved(call_id: str, approved: bool, reason: str | None) -> Event:
    event: Event = {"type": "tool-approval-response", "toolCallId": call_id, "approved": approved}
    return event if reason is None else {**event, "reason": reason}


def _resolved(call_id: str, output: Json, error: str | None) -> Event:
    if error is None:
        return {"type": "tool-output-available", "toolCallId": call_id, "output": checked_data("output", output)}
    words = checked_text("error", error) or "The client did not execute this call, and gave no reason."
    return {"type": "tool-output-error", "toolCallId": call_id, "errorText": words}
