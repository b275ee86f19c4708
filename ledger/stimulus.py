"""What can reach the supervisor: requests of parents and clients, reports of hosts, and the clock.

A stimulus is also the message that brings it: a list of its class's tag and its fields. With what is durable in an agent's storage comes
its `sequence` (`Storage.sequence`): how far the storage has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple


# With `wait`, the sender is told its end.
class Request(NamedTuple):
    run_id: str
    agent_type: str
    parent: str
    parent_run: str
    digest: str
    input: bytes
    options: dict[str, Any]
    life: int
    wait: bool


class Up(NamedTuple):
    run_id: str
    incarnation: int


# `body` is encoded plain data.
class Progress(NamedTuple):
    run_id: str
    incarnation: int
    body: bytes
    sequence: int = 0


# The child reached the `occurrence`-th milestone of this name in its attempt, or in a call of one of its tools (`source`).
class Milestone(NamedTuple):
    run_id: str
    incarnation: int
    name: str
    occurrence: int
    body: bytes
    sequence: int = 0
    source: str = ""


# The `number`-th piece of the child's stream in its attempt.
class Chunk(NamedTuple):
    run_id: str
    incarnation: int
    number: int
    body: bytes


# The child returned (`output`, `summary`) or raised (`error`, `trace`). With `released`, it has left its host.
class Ended(NamedTuple):
    run_id: str
    incarnation: int
    output: bytes | None
    summary: str
    error: str | None
    released: bool = False
    trace: str = ""
    sequence: int = 0


# The child raised (`error`, `trace`), and undoes the steps of its run before it reports that end.
class Undoing(NamedTuple):
    run_id: str
    incarnation: int
    error: str
    trace: str = ""
    sequence: int = 0


class PromiseUndo(NamedTuple):
    """A step that has an undo is about to begin. Its job begins when this is accepted: then the run does not end before its steps are
    undone, unless it completes."""

    run_id: str
    incarnation: int


# `cause` is one of those below.
class Unstarted(NamedTuple):
    run_id: str
    incarnation: int
    cause: str
    error: str


class Waiting(NamedTuple):
    """All that the child does in this attempt waits: for an event of one of these names, or until `deadline_ms` by its own clock, which is
    `after_ms` away; infinite if only an event ends it. With `by_wall` the moment is one of the calendar. With `released`, it has left its
    host."""

    run_id: str
    incarnation: int
    attempt: int
    events: list[str]
    deadline_ms: float
    after_ms: float
    by_wall: bool
    released: bool = False
    sequence: int = 0


# The child took an event, durably, after its step `after`.
class Took(NamedTuple):
    run_id: str
    incarnation: int
    mail_id: str
    after: str
    sequence: int = 0


# The agent left its host cleanly: nothing of its work is in memory.
class Released(NamedTuple):
    agent_id: str
    incarnation: int
    sequence: int = 0


class Awake(NamedTuple):
    agent_id: str
    incarnation: int


# The agent must be awake at `at_ms`; with 0, it has nothing scheduled. `home` is what its class asks of its host.
class Alarm(NamedTuple):
    agent_id: str
    incarnation: int
    at_ms: int
    home: list[Any] | None
    sequence: int = 0


# The calls of a chat that wait for people or their clients. The fields are those of `CallsAsked`.
class AskCalls(NamedTuple):
    agent_id: str
    incarnation: int
    calls: dict[str, bytes]
    home: list[Any] | None
    sequence: int = 0


# The recipient's transaction with these mails' effects is durable. `failures` are `(mail id, error, park)`.
class Handled(NamedTuple):
    agent_id: str
    incarnation: int
    mail_ids: list[str]
    failures: list[tuple[str, str, bool]]
    sequence: int = 0


class Adopt(NamedTuple):
    """A program brought code: agents of these origins (`ids.origin_of`) take it when they are woken next. The package is empty for code
    that is installed. `digests` has that of each origin's part of it."""

    package: str
    digests: dict[str, str]


BY_OPERATOR: Final = "cancelled by an operator"
"""The reason of a cancellation for which nobody gave one."""


# `parent` names the agent that asks, whose run it must be; None is an operator.
class Cancel(NamedTuple):
    run_id: str
    parent: str | None
    reason: str


class Clear(NamedTuple):
    run_ids: list[str]


class ExpireRuns(NamedTuple):
    """These runs ended long ago, and may be forgotten if they are not needed any more. `called` are children of theirs that were called or
    written to."""

    run_ids: list[str]
    called: Sequence[str] = ()


class Tell(NamedTuple):
    """Mail for an agent, posted exactly once. `epoch` is that of the supervisor to which it was sent first: a later one has to look whether
    it was posted already. `standalone` is what the recipient's class says (`ledger.addressing`)."""

    mail_id: str
    recipient: str
    sender: str
    method: str
    body: bytes
    home: list[Any] | None
    epoch: int
    standalone: str = ""


# An event for a run, sent exactly once. `epoch` is that of `Tell`.
class Send(NamedTuple):
    mail_id: str
    run_id: str
    name: str
    sender: str
    body: bytes
    epoch: int


class OpenAsk(NamedTuple):
    """A run asks people something. The fields are those of `AskOpened`; `refuses` is the id of the mail with an answer that the run's code
    could not take."""

    run_id: str
    incarnation: int
    number: int
    digest: str
    question: str
    schema: bytes
    args: bytes | None
    to: list[Any]
    people: int
    self_answer: bool
    expires_at_ms: int
    otherwise: bytes | None
    note: str = ""
    refuses: str = ""


# A run waits for the answer to a question no more.
class WithdrawAsk(NamedTuple):
    run_id: str
    incarnation: int
    number: int
    digest: str


class AnswerAsk(NamedTuple):
    """Somebody answers a question of a run. `digest` is that of what was shown, or empty if that is not known; `value` and `edited` are
    encoded plain data. `answer_id` makes a repeated answer one."""

    run_id: str
    number: int
    answer_id: str
    digest: str
    who: str
    groups: list[str]
    is_operator: bool
    is_admin: bool
    channel: str
    value: bytes
    edited: bytes | None


class Pause(NamedTuple):
    run_id: str
    paused: bool


# An agent and its descendants are to be deleted: storages, runs, alarms and mail.
class Forget(NamedTuple):
    agent_id: str


# The present lives of an agent and its descendants are to end. Their storages and work stay.
class StopLives(NamedTuple):
    agent_id: str


# A person asks that a parked mail be delivered again, or that a run that failed, was given up or is parked be tried again.
class Retry(NamedTuple):
    key: str


# A host began a session: its tenants as `(agent, incarnation)`, and the incarnations whose goodbye is on its way.
class HostUp(NamedTuple):
    host_id: str
    tenants: list[tuple[str, int]]
    farewells: Sequence[int] = ()


class HostLost(NamedTuple):
    host_id: str
    cause: str
    excused: bool = False


# One more host of this pool did not come up.
class Unhosted(NamedTuple):
    pool: str


# Time passed. The wall clock, by which alarms ring, is so much behind the time of the ledger, or ahead if it is less than 0.
class Tick(NamedTuple):
    behind_ms: int = 0


Stimulus = (
    Request | Up | Progress | Milestone | Chunk | Ended | Undoing | Unstarted | Waiting | Took
    | Released | Awake | Alarm | AskCalls | Handled | Cancel | Clear | Tell | PromiseUndo
    | Send | OpenAsk | WithdrawAsk | AnswerAsk
    | Pause | ExpireRuns | Forget | StopLives | Retry | Adopt | HostUp | HostLost | Unhosted | Tick
)  # fmt: skip

COLLECTED_NOTHING = "collected-nothing"
UNIMPORTABLE = "unimportable"
NOT_RUNNABLE = "not-runnable"
START_FAILED = "start-failed"
STORAGE_LOST = "storage-lost"
UNDO_FAILED = "undo-failed"
"""An undo raised in all its tries, so that the run is parked."""
UNFIT = "unfit"
"""The run cannot be entered as it stands, and no other attempt could: it is parked."""
