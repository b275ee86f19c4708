"""What the turns of one chat agent share: transcript, open turns, their streams, tools and model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from perdure.actors.chat.chat_messages import REPLACED_BY
from perdure.actors.chat.chat_store import ChatStore
from perdure.actors.chat.model import library_of, load_library, resolve_model
from perdure.actors.chat.stream import Stream
from perdure.actors.chat.tools import Toolset
from perdure.actors.chat.transcript import LostCalls, Transcript
from perdure.actors.chat.turn import ChatRecoveryContext, Turn, TurnSettings
from perdure.actors.chat.turn_spans import TurnSpans
from perdure.actors.chat.watchdog import Limit, Watchdog
from perdure.actors.events.observability import emit
from perdure.actors.host.tenant import Tenant
from perdure.actors.life.class_options import BOUNDS
from perdure.actors.life.host_options import Checks
from perdure.actors.life.run_context import RunContext
from perdure.ledger import BadRequest, Secret, check_ms, check_number, check_whole
from perdure.policies import ChatRecovery, ContextOverflow, Event, Message, Overlap, steered_message

STALL_MS, FIRST_TOKEN_MS = 90_000, 600_000
"""The limits of silence, unless an author has others: a model may think for minutes before it speaks, but hardly between two words."""
ALIVE_MS = 600_000
"""How long keep-alives may stand for events."""

if TYPE_CHECKING:
    from pydantic_ai import Agent as LibraryAgent
    from pydantic_ai.models import Model


class ChatAuthor(Protocol):
    """What the turns of a chat ask of its author's class. `ChatAgent` says what each means."""

    max_steps: ClassVar[int]
    model: ClassVar[object]
    model_key: ClassVar[Secret | None]
    chat_recovery: ClassVar[ChatRecovery | bool]
    context_overflow: ClassVar[ContextOverflow | bool]
    chat_stream_stall_timeout_ms: ClassVar[float]
    chat_first_token_timeout_ms: ClassVar[float | None]
    tool_timeout_ms: ClassVar[float | None]
    message_concurrency: ClassVar[str | dict[str, object]]

    toolsets: ClassVar[Sequence[object]]

    @property
    def library_agent(self) -> LibraryAgent[object, object] | None: ...
    @classmethod
    def _perdure_toolsets(cls) -> Sequence[Any]: ...
    @classmethod
    def _perdure_deps(cls) -> object: ...
    def get_model(self) -> object: ...
    def get_model_settings(self) -> dict[str, object] | Awaitable[dict[str, object] | None] | None: ...
    def get_instructions(self) -> str | Awaitable[str | None] | None: ...
    def repair_interrupted_tool_part(self, part: Any, /) -> object: ...
    async def summarize_messages(self, messages: list[dict[str, object]], /) -> str | None: ...
    def report_progress(self, fraction: float | None = None, **signal: object) -> object: ...
    async def on_chat_response(self, response: dict[str, object], /) -> None: ...
    async def on_chat_error(self, error: str, info: dict[str, object], /) -> str | None: ...
    async def on_chat_recovery(self, context: ChatRecoveryContext, /) -> dict[str, object] | None: ...


def _check_is(kind: type, field: str, value: object) -> None:
    if not isinstance(value, kind):
        raise BadRequest(field, f"{value!r:.200} is no {kind.__name__}")


def _check_read(read: Callable[[object], object], field: str, value: object) -> None:
    try:
        read(value)
    except (TypeError, ValueError) as problem:
        raise BadRequest(field, str(problem).removeprefix(f"{field}: ")) from None


BOUNDS_OF_CHATS: Final[Checks] = {
    **BOUNDS,
    "max_steps": check_whole,
    "chat_recovery": partial(_check_read, ChatRecovery.of),
    "context_overflow": partial(_check_read, ContextOverflow.of),
    "chat_stream_stall_timeout_ms": check_ms,
    "chat_first_token_timeout_ms": check_ms,
    "tool_timeout_ms": partial(check_number, unit="milliseconds", above=True),
    "message_concurrency": partial(_check_read, Overlap.of),
    "model_key": partial(_check_is, Secret),
    "instructions": partial(_check_is, str),
    # What these are shows when they are asked: the library is not loaded here.
    "model": partial(_check_is, object),
    "toolsets": partial(_check_is, object),
}


class ConversationState:
    """The state of one chat agent's conversation, in one life of it.

    Attributes:
        open: the turns that have not ended, by their ids.
        streams: the streams of open turns, by the ids of the turns.
        runs: the attempts at runs that open turns answer, by the ids of the turns.
        ours: the ids of the turns that this life has begun or recovered.
        spans: tells of the turns where telemetry is on.
        freed_at_ms: when a turn last made room for the next one, in this life.
        asks_changed: is called when other calls wait for people than before, durably.
    """

    def __init__(self, agent: ChatAuthor, tenant: Tenant) -> None:
        self.agent, self.tenant = agent, tenant
        self.store = ChatStore(tenant)
        self.transcript = Transcript(self.store)
        self.lost_calls = LostCalls(self.store)
        self.open: dict[str, Turn] = {}
        self.freed_at_ms = 0
        self.asks_changed: Callable[[], None] = lambda: None
        self.streams: dict[str, Stream] = {}
        self.runs: dict[str, RunContext] = {}
        self.ours: set[str] = set()
        self.spans = TurnSpans(tenant, self.runs.get)
        self._toolset: Toolset | None = None
        self._model: tuple[object, Model] | None = None

    def release(self, turn: Turn) -> Stream | None:
        # It has ended. Followers that wait for its next event hear so.
        request_id = turn.request_id
        self.open.pop(request_id, None)
        self.runs.pop(request_id, None)
        self.ours.discard(request_id)
        stream = self.streams.pop(request_id, None)
        if stream is not None:
            stream.rest()
            stream.wake()
        return stream

    def origin_of(self, turn: Turn) -> str:
        return turn.origin(self.tenant.agent_id)

    def stream_of(self, turn: Turn) -> Stream:
        # Only of a turn that has not ended.
        stream = self.streams.get(turn.request_id)
        if stream is None:

            def emit_to_run(events: list[Event]) -> None:
                run = self.runs.get(turn.request_id)
                if run is not None:
                    run.emit({"type": "chunks", "chunks": events})

            before = self.store.events(turn.request_id) if turn.segments else []
            stream = Stream(turn, self.store, self.tenant, emit_to_run, before)
            if turn.base:
                stream.begin_with((self.transcript.get(turn.message_id) or {"parts": []})["parts"][: turn.base])
            self.streams[turn.request_id] = stream
        return stream

    def rest(self) -> None:
        for stream in self.streams.values():
            stream.rest()

    def replace_now(self, stream: Stream) -> None:
        # The messages whose place this turn takes are deleted, or marked as replaced; durable with the next flush of the stream.
        turn = stream.turn
        gone = self.transcript.since(turn.options["instead_of"]) if "instead_of" in turn.options else []
        if turn.options.get("keep"):
            marked: list[Message] = [
                {**each, "metadata": {**each.get("metadata", {}), REPLACED_BY: turn.message_id}} for each in gone
            ]
            placed = self.transcript.placed(marked)
            self.transcript.put(placed)
            stream.beside(messages=placed)
        elif gone:
            stream.beside(messages=[(self.transcript.position(each["id"]), None) for each in gone])
            self.transcript.remove(each["id"] for each in gone)
        if turn.trigger == "regenerate":  # what people said in the answer is asked with the other one
            said = [message for each in gone[:1] for part in each["parts"] if (message := steered_message(part))]
            self.add_now(stream, [each for each in said if each["id"] not in self.transcript])

    def add_now(self, stream: Stream, messages: list[Message]) -> None:
        # The messages are durable with the next flush of the stream.
        placed = self.transcript.placed(messages)
        self.transcript.put(placed)
        stream.beside(messages=placed)
        if stream.turn.is_of_a_person:
            self.lost_calls.user_spoke()

    # tools and model

    def toolset(self) -> Toolset:
        if self._toolset is None:
            self._toolset = Toolset.of(self.agent)
        return self._toolset

    async def model(self) -> Model:
        # The library of the named one is loaded on a thread, once a host, before `get_model` may import it.
        await self._load(self.agent.model)
        wanted = await self.tenant.call_hook(self.agent.get_model)
        await self._load(wanted)
        if self._model is None or self._model[0] is not wanted:
            self._model = (wanted, resolve_model(wanted, self.agent.model_key))
        return self._model[1]

    def watchdog(self, turn: Turn | None) -> Watchdog:
        first = self.agent.chat_first_token_timeout_ms
        asked: TurnSettings = {} if turn is None else turn.options
        between = float(asked.get("chat_stream_stall_timeout_ms", self.agent.chat_stream_stall_timeout_ms))
        further = Limit(between, between and max(between, ALIVE_MS))
        if first is None:
            return Watchdog(Limit(FIRST_TOKEN_MS, FIRST_TOKEN_MS) if between == STALL_MS else further, further)
        return Watchdog(Limit(first, first), further)

    async def _load(self, model: object) -> None:
        library, loaded = library_of(model), self.tenant.services.libraries
        if library not in loaded:
            await self.tenant.threads.run(lambda: load_library(model))
            loaded.add(library)

    def emit(self, name: str, turn: Turn, payload: Mapping[str, object], *, channel: str = "chat") -> None:
        told = {"requestId": turn.request_id, **payload}
        emit(channel, name, agent=self.tenant.agent_id, payload=told, at_ms=self.tenant.now_ms())
