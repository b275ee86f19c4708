"""A turn: one exchange of a chat agent, as one durable row from its acceptance to its end.

    accepted ──► running ──► completed | error | aborted | skipped
        │           │  ▲
        │           ▼  │ (a person answered)
        │         parked ──► error | aborted
        └──► skipped | aborted | error          (it never began)

`running` survives a death: the next life finds the row and recovers the turn, under the same request id, into the same message. Everything
about a turn is in this one row, so no crash can come between its pieces. An ended turn never changes. `policies.turn_status` is the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NotRequired, TypedDict

from perdure.actors.events.message_parts import step_base
from perdure.actors.life.documents import StoredRow
from perdure.ledger import digest_of, pack
from perdure.policies import (
    TURN_ENDED,
    TURN_TRANSITIONS,
    Event,
    Json,
    JsonObject,
    Message,
    Part,
    TurnEvent,
    TurnStatus,
)

OUTPUT = "data-output"
"""The part of an answer that holds what an agent of pydantic-ai returned, if that is not its text."""


class TurnSettings(TypedDict, total=False):
    """The settings of one turn, in place of the agent's: checked, and stored with the turn."""

    client_tools: list[JsonObject]
    chat_stream_stall_timeout_ms: float
    answer: Event
    instead_of: str
    keep: bool


STEER = "steer"
PEOPLES = frozenset({"chat", "save", "submission", STEER})  # triggers
READ = "steered"
"""The reason of the end of a turn whose messages another one has read while it was under way."""


@dataclass
class Turn(StoredRow):
    """One exchange. Instants are milliseconds since the epoch.

    Attributes:
        number: its place in the queue of its agent.
        trigger: who asked: `chat`, `save`, `submission`, `steer`, `continue`, `agent-tool`, `notification`.
        messages: added to the transcript when the turn begins.
        message_id: the assistant's message that this turn writes.
        continues: the assistant's message that it continues; empty for an answer of its own.
        base: the parts of that message before.
        user_message_id: the newest message of the user when it began. A turn recovers only while it is the newest.
        events: the durable events of its stream, in `segments` documents.
        parked_events: the events that it had when it last began to wait for a person; 0 if it never has.
        attempt: which life of the turn this is, from 1.
        was_entered: whether that life has come to work, and does not still wait for its pause to be over.
        failures: lost connections since the last durable progress; `failures_total` never decreases.
        work: pieces of progress over its whole life.
        compactions: how often the conversation was made shorter for it after a refusal of the provider.
        keeps_context: whether it was tried in vain to make the conversation shorter ahead of need.
        incident: its interruptions, for `policies.chat_recovery`.
        is_overlapping: whether it came while another turn was open.
        finish_reason: why the provider ended the last answer.
        trace: the place in a trace of its request; empty if the request carried none.
        attempt_at_ms: when the present attempt began.
        asked_at_ms: when the request to the model was sent that is under way; 0 if there is none, and while turns are not traced.
        cancelled: the reason of its cancellation, or None.
        steers: the turn that its messages were meant for, until it begins as a turn of its own.
        asks: what is asked of people about its calls, beside what the calls say, as far as it is no matter of course: by the ids of
            the calls, as fields of an `AskRecord`.
        began_by: who asked for it, where a gateway knows that; runs of its calls are begun in that name.
    """

    request_id: str
    number: int
    trigger: str
    message_id: str
    digest: str = ""
    status: TurnStatus = TurnStatus.ACCEPTED
    messages: list[Message] = field(default_factory=list)
    continues: str = ""
    base: int = 0
    user_message_id: str = ""
    options: TurnSettings = field(default_factory=TurnSettings)
    metadata: Json = None
    idempotency_key: str = ""
    run_id: str = ""
    accepted_at_ms: int = 0
    started_at_ms: int = 0
    ended_at_ms: int = 0
    progress_at_ms: int = 0
    parked_at_ms: int = 0
    parked_events: int = 0
    events: int = 0
    segments: int = 0
    attempt: int = 0
    failures: int = 0
    failures_total: int = 0
    work: int = 0
    incident: JsonObject | None = None
    cancelled: str | None = None
    stashed: Json = None
    error: str = ""
    reason: str = ""
    is_overlapping: bool = False
    finish_reason: str = ""
    trace: str = ""
    attempt_at_ms: int = 0
    asked_at_ms: int = 0
    compactions: int = 0
    keeps_context: bool = False
    was_entered: bool = False
    steers: str = ""
    asks: dict[str, list[object]] = field(default_factory=dict)
    began_by: str = ""

    def origin(self, agent_id: str) -> str:
        """What the ids of all that the turn has done derive from: the same in every life of it, and no other turn's, although that has
        its request id in another chat, or here after this one was forgotten."""
        # The turn of a run may be played before it is written, so its number does not count: it is as unique as its run.
        return digest_of(pack([agent_id, self.request_id, 0 if self.run_id else self.number]))

    @property
    def is_over(self) -> bool:
        return self.status in TURN_ENDED

    @property
    def is_of_a_person(self) -> bool:
        # What the runtime tells of runs stands in messages of the user too.
        return self.trigger in PEOPLES and any(each["role"] == "user" for each in self.messages)

    @property
    def was_read(self) -> bool:
        # Another turn has read its messages, so it never began itself.
        return self.status is TurnStatus.SKIPPED and self.reason == READ

    def apply(self, event: TurnEvent) -> bool:
        # Returns False for an echo. An `IllegalTransition` is a bug of ours.
        status = TURN_TRANSITIONS.next(self.status, event, self.request_id)
        self.status = status or self.status
        return status is not None

    @contextmanager
    def applied(self, event: TurnEvent) -> Iterator[bool]:
        # If the block fails, the status is restored.
        with ExitStack() as undo:
            undo.callback(setattr, self, "status", self.status)
            yield self.apply(event)
            undo.pop_all()

    @property
    def shown(self) -> ActiveTurn:
        return ActiveTurn(
            request_id=self.request_id,
            trigger=self.trigger,
            continuation=bool(self.continues),
            attempt=self.attempt,
            metadata=self.metadata,
            client_tools=self.options.get("client_tools"),
        )

    @property
    def own_message_ids(self) -> list[str]:
        given = [str(each["id"]) for each in self.messages]
        return [self.message_id, *(each for each in given if each.startswith(f"{self.request_id}-"))]

    def rename_messages(self) -> None:
        # The messages of a deleted turn with the same id are still in the transcript.
        stem, known = f"{self.request_id}-{self.number}-", self.own_message_ids
        self.message_id = f"{stem}answer"
        self.messages = [
            {**each, "id": stem + each["id"].removeprefix(f"{self.request_id}-")} if each["id"] in known else each
            for each in self.messages
        ]


class TurnTold(TypedDict):
    """A turn as its agent tells of it (`inspect_turn`, `list_turns`): these fields of its row, and more."""

    request_id: str
    status: str
    trigger: str
    error: str
    reason: str
    attempt: int
    events: int
    parked_events: int
    message_id: str
    base: int
    steers: str
    """The turn that it is held back for, or that has read its messages; empty for a turn of its own."""


class SteerReceipt(TypedDict):
    """What became of a message by which a turn was to be steered, as far as it is decided.

    Attributes:
        request_id: names the request, and the turn of its own that the message may become: for `inspect_turn`, `attach`, `cancel_chat`.
        message_id: the id of the message. A part `data-steered` of the answer has it where it was read.
        steered: the turn under way, which has read it or reads it at its next step boundary, unless it ends before; None if the message
            is a turn of its own.
        accepted: whether it is new. The same request again is the same message.
    """

    request_id: str
    message_id: str
    steered: str | None
    accepted: bool


class TurnStanding(TurnTold):
    """The same for a follower of the feed: with the messages that it has not written yet, and the ids of those it came
    with."""

    waiting: list[Message]
    message_ids: list[str]
    is_continuation: bool
    is_recovering: bool
    waits_for: list[str]


class TurnPage(TypedDict):
    """An answer to the follower of a turn: how far it is, as `TurnResult` has it, and events with the number after them."""

    request_id: str
    status: str
    message: Message | None
    error: str
    reason: str
    next_event: int
    events: list[Event]
    next: int
    attempt: int
    origin: str
    """What the ids of the runs of its calls derive from (`Turn.origin`)."""
    accepted: NotRequired[bool]
    """Whether the turn is new, in the answer to the request for it."""


@dataclass(frozen=True, kw_only=True)
class ActiveTurn:
    """The turn that an agent is playing, for its author's code.

    Attributes:
        trigger: who asked: `chat`, `save`, `submission`, `steer`, `continue`, `agent-tool`, `notification`.
        continuation: whether it continues an earlier answer.
        attempt: 1, or more after interruptions.
        metadata, client_tools: those of the request, or None.
    """

    request_id: str
    trigger: str
    continuation: bool
    attempt: int
    metadata: Json
    client_tools: Json


@dataclass(frozen=True, kw_only=True)
class ChatRecoveryContext:
    """What `on_chat_recovery` is told (seed 000, and the spec's additions).

    Attributes:
        incident_id: the same for all interruptions of one turn.
        attempt: 1, 2, … of this incident, up to `max_attempts`.
        recovery_kind: `retry` (nothing was said yet) or `continue`.
        stream_id: the stream of the turn; empty if nothing was streamed, and then so are `partial_text` and `partial_parts`.
        request_id: the turn; also `recovery_root_request_id`, because a recovery is no turn of its own.
        partial_text, partial_parts: what was said before the interruption.
        recovery_data: the last `stash`, or None.
        messages: the conversation, a copy.
        last_body, last_client_tools: the metadata and the client's tools of the turn.
        created_at: when the turn began, in milliseconds since the epoch.
        cause: `process_lost`, `stall`, `out_of_memory`.
    """

    incident_id: str
    attempt: int
    max_attempts: int
    recovery_kind: str
    stream_id: str
    request_id: str
    recovery_root_request_id: str
    partial_text: str
    partial_parts: list[Part]
    recovery_data: Json
    messages: list[Message]
    last_body: Json
    last_client_tools: Json
    created_at: int
    cause: str


@dataclass(frozen=True, kw_only=True)
class TurnResult:
    """How a turn ended, or how far it is.

    Attributes:
        status: `completed`, `error`, `aborted`, `skipped`; `interrupted`; `parked` while the calls of the message that wait are not
            answered; or another status of an open turn.
        reason: why, where the status does not say it. Of a completed turn: `length` (the answer was cut off), `content_filter` (also a
            refusal, whose words are the answer) or `empty` (the model said nothing).
        text: the text of the answer.
        message: the assistant's message, or None.
        next_event: the number to `attach` from.
        finish_reason: why the provider ended the last answer: `stop`, `tool_call`, `length`, `content_filter`, `error`; empty without one.
    """

    request_id: str
    status: str
    text: str = ""
    message: Message | None = None
    error: str = ""
    reason: str = ""
    next_event: int = 0
    finish_reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the answer is whole."""
        return self.status == TurnStatus.COMPLETED

    @property
    def output(self) -> Json:
        """What an agent of pydantic-ai returned (`DurableAgent`), as plain data: by default the text of its last answer."""
        parts = [] if self.message is None else self.message["parts"]
        return next((part["data"] for part in reversed(parts) if part["type"] == OUTPUT), last_text(parts))


def last_text(parts: Sequence[Part]) -> str:
    return text_in(parts[step_base(parts) + 1 :])


def text_in(parts: Sequence[Part]) -> str:
    return "".join(part["text"] for part in parts if part["type"] == "text")
