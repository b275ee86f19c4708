"""Facts: what has happened, in the past tense.

A fact is a tuple of plain data. It is stored under the name of its class with its fields in order (`codec`), so other fields are another
format of directories (`directory_format`). A `sequence` is how far an agent's storage had come by then.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class CodeAdopted(NamedTuple):
    """From now on agents whose code is of these origins (`ids.origin_of`) take this package when they are woken, except for the children of
    runs. It is empty for code that is installed. `digests` has that of each origin's part: where it is that of the package before, that one
    stays the newest."""

    package: str
    digests: dict[str, str]


# Its epoch fences all earlier lives; `limits` are those by which it decides.
class SupervisorStarted(NamedTuple):
    epoch: int
    limits: dict[str, float]


# It ends on purpose, with all hosts: what they have at work loses its attempt to nobody's fault.
class SupervisorStopped(NamedTuple):
    epoch: int


class RunRequested(NamedTuple):
    """A parent or client requested a run. `input` is None if the payload table has it, `options` holds what differs from the defaults,
    and `life` is the incarnation of the parent. `mark` tells its mail from that of an earlier run with the same id, which was cleared."""

    run_id: str
    agent_type: str
    parent: str
    parent_run: str
    digest: str
    input: bytes | None
    options: dict[str, Any]
    life: int = 0
    mark: int = 0


# What the run waited for is there (`policies.joins`): these leaves of its condition have come true, by their places.
class JoinMet(NamedTuple):
    run_id: str
    met: list[int]


# The run was assigned to a host. With `collect` the child may hand over a result that it has committed, but not run again.
class AttemptStarted(NamedTuple):
    run_id: str
    attempt: int
    incarnation: int
    host_id: str
    collect: bool = False


# The host reported that the attempt is at work.
class RunStarted(NamedTuple):
    run_id: str
    attempt: int


class ProgressReported(NamedTuple):
    """The child reported progress. `body` is encoded plain data: fraction, message, phase, data. With `relayed`, a tool of the child did,
    from a host of its own, which says nothing about the attempt."""

    run_id: str
    attempt: int
    body: bytes
    sequence: int = 0
    relayed: bool = False


class MilestoneReached(NamedTuple):
    """The `occurrence`-th milestone of this name from this `source`: the child (empty), or a call of one of its tools; `number` counts the
    run's milestones from 0. `relayed` is that of `ProgressReported`."""

    run_id: str
    attempt: int
    number: int
    name: str
    occurrence: int
    body: bytes
    sequence: int = 0
    source: str = ""
    relayed: bool = False


# The `number`-th piece of the child's stream in this attempt.
class ChunkEmitted(NamedTuple):
    run_id: str
    attempt: int
    number: int
    body: bytes


class RunSucceeded(NamedTuple):
    """The child returned. With `large`, `output` is None and the payload table has it."""

    run_id: str
    attempt: int
    output: bytes | None
    summary: str
    released: bool
    large: bool = False
    sequence: int = 0


class RunErrored(NamedTuple):
    """The child raised (`trace` is its traceback), or every attempt was lost."""

    run_id: str
    attempt: int
    error: str
    released: bool
    trace: str = ""
    sequence: int = 0


# The run was cancelled. This is also the tombstone that prevents a late start (spec W-13).
class RunAborted(NamedTuple):
    run_id: str
    reason: str


# The parent stopped waiting. A late result still replaces this.
class RunInterrupted(NamedTuple):
    run_id: str
    reason: str
    child_still_running: bool | None
    error: str


# A budget ran out: the child is being stopped, and its end still counts until it has stopped (spec W-55).
class TeardownBegan(NamedTuple):
    run_id: str
    reason: str


# The attempt ended without a result: its host died, or never started it. The next one may begin at `retry_at_ms`.
class AttemptLost(NamedTuple):
    run_id: str
    attempt: int
    cause: str
    retry_at_ms: int
    excused: bool = False  # its host was ended on purpose


# A later life of the parent requested the run again. Silence is measured from here.
class RunReattached(NamedTuple):
    run_id: str
    life: int
    attempt: int = 0


# The run was cleared. It is deleted as soon as its child has stopped.
class RunCleared(NamedTuple):
    run_id: str


class RunParked(NamedTuple):
    """The attempt was refused before `run` was entered, for a reason that another try does not change: the stored input does not fit the
    code, or the agent's storage cannot be brought to its version. The run waits for other code, or for a person."""

    run_id: str
    attempt: int
    error: str


class RunWaiting(NamedTuple):
    """The attempt ended because all that the child does waits: for one of the events of these names, or until `until_ms`, which is infinite
    if only an event ends it. `until_ms` is by the ledger's time, or with `by_wall` by the wall clock; `deadline_ms` is the same moment as
    the child knows it. With `released`, the child has left its host."""

    run_id: str
    attempt: int
    events: list[str]
    until_ms: float
    by_wall: bool
    deadline_ms: float
    released: bool
    sequence: int = 0


# An operator paused the run, or with `paused=False` let it go on. A run that is at work stops at its next step.
class RunPaused(NamedTuple):
    run_id: str
    paused: bool


# An event for a run, kept until the run takes it. `sender` is an agent, or empty for a client.
class EventSent(NamedTuple):
    mail_id: str
    run_id: str
    name: str
    sender: str
    body: bytes


# The run took an event, durably, after the step `after` of this attempt.
class EventTaken(NamedTuple):
    run_id: str
    attempt: int
    mail_id: str
    after: str
    sequence: int = 0


# A step that has an undo is about to begin. From now on the run does not fail, and is not aborted, before its steps are undone.
class UndoPromised(NamedTuple):
    run_id: str
    attempt: int


class UndoBegan(NamedTuple):
    """The run fails for good, or was cancelled, and its steps are undone before it ends so (`undo`, a word of `status.Undo`). The attempts
    after this one undo, and `run` is not entered any more."""

    run_id: str
    attempt: int
    undo: str
    error: str
    trace: str = ""


class AskOpened(NamedTuple):
    """The run asks people something, as its `number`-th question. `digest` is that of what is shown and of whom it asks; `schema`, `args`
    and `otherwise` are encoded plain data. `to` are groups or people, each with the time by the wall clock at which its turn comes, and
    the first `level` have had it; empty if everybody is asked. `expires_at_ms` is by the wall clock, 0 for never. `note` says why it is
    asked again."""

    run_id: str
    number: int
    digest: str
    question: str
    schema: bytes
    args: bytes | None
    to: list[Any]
    level: int
    people: int
    self_answer: bool
    began_by: str
    expires_at_ms: int
    otherwise: bytes | None
    note: str = ""


class AskAnswered(NamedTuple):
    """A person answered a question; `closes` says whether that decides it. `answer_id` tells the answer from others. `edited` are the
    arguments as they were changed."""

    run_id: str
    number: int
    answer_id: str
    digest: str
    who: str
    channel: str
    value: bytes
    edited: bytes | None
    closes: bool


# Nobody answered a question in time.
class AskLapsed(NamedTuple):
    run_id: str
    number: int


# A question has come to the first `level` of those that it names.
class AskEscalated(NamedTuple):
    run_id: str
    number: int
    level: int


# The run waits for the answer no more.
class AskWithdrawn(NamedTuple):
    run_id: str
    number: int


class RunRetried(NamedTuple):
    """A person had the run tried again, or code came for a run that was parked, or tried again without an attempt since. It has all its
    attempts again, and the code of this package unless that is None."""

    run_id: str
    package: str | None = None


# An agent was assigned to a host for other work than a run of its own: mail, a call, or an unclean end.
class AgentActivated(NamedTuple):
    agent_id: str
    incarnation: int
    host_id: str
    home: list[Any] | None = None


# The agent left its host cleanly: nothing of its work is in memory.
class AgentReleased(NamedTuple):
    agent_id: str
    incarnation: int
    sequence: int = 0


# The agent's host died under it, in words `cause`. It may owe work, so it is woken again at `wake_at_ms`.
class AgentLost(NamedTuple):
    agent_id: str
    incarnation: int
    wake_at_ms: int
    cause: str = ""
    excused: bool = False


class AlarmSet(NamedTuple):
    """The agent must be awake at `at_ms`, whatever becomes of its process until then; 0 withdraws the alarm. `home` is what its class
    asks of its host."""

    agent_id: str
    at_ms: int
    home: list[Any] | None = None
    sequence: int = 0


class CallsAsked(NamedTuple):
    """The calls of a chat that wait for people or their clients: all of them, by the ids of their questions, each as encoded plain data.
    `home` is that of `AlarmSet`."""

    agent_id: str
    calls: dict[str, bytes]
    home: list[Any] | None = None
    sequence: int = 0


class AlarmRang(NamedTuple):
    """The time of an agent's alarm came. From then on the agent owes work: its present life sets the next alarm, or a new life is
    begun."""

    agent_id: str


# The agent and its descendants are to be deleted. None of them is woken again.
class AgentDoomed(NamedTuple):
    agent_id: str


# The storages of a doomed agent and its descendants are deleted. Their names are free again.
class AgentForgotten(NamedTuple):
    agent_id: str


# The present lives of the agent and its descendants are to end. Their next lives do what they owe.
class AgentStopped(NamedTuple):
    agent_id: str


class MailPosted(NamedTuple):
    """Mail for an agent: it calls `method` there with the arguments in `body`. `home` is what its class asks of its host; `sender` is an
    agent, or empty for a client."""

    mail_id: str
    recipient: str
    sender: str
    method: str
    body: bytes
    home: list[Any] | None = None


# The recipient's transaction with these mails' effects is durable.
class MailDelivered(NamedTuple):
    recipient: str
    mail_ids: list[str]
    sequence: int = 0


# A handler raised. The mail is delivered again at `retry_at_ms`, or parked if that is None.
class MailFailed(NamedTuple):
    mail_id: str
    error: str
    retry_at_ms: int | None


# The mail was withdrawn before it was delivered: its run was cleared, or its recipient is being deleted. An
# event that a run did not take is withdrawn by the fact of its end.
class MailSuppressed(NamedTuple):
    mail_id: str


# A person asked that a parked mail be delivered again.
class MailRequeued(NamedTuple):
    mail_id: str


Fact = (
    SupervisorStarted
    | SupervisorStopped
    | CodeAdopted
    | RunRequested
    | JoinMet
    | AttemptStarted
    | RunStarted
    | ProgressReported
    | MilestoneReached
    | ChunkEmitted
    | RunSucceeded
    | RunErrored
    | RunAborted
    | RunInterrupted
    | TeardownBegan
    | AttemptLost
    | RunReattached
    | RunCleared
    | RunParked
    | RunWaiting
    | RunPaused
    | EventSent
    | EventTaken
    | UndoPromised
    | UndoBegan
    | AskOpened
    | AskAnswered
    | AskLapsed
    | AskEscalated
    | AskWithdrawn
    | RunRetried
    | AgentActivated
    | AgentReleased
    | AgentLost
    | AlarmSet
    | CallsAsked
    | AlarmRang
    | AgentDoomed
    | AgentForgotten
    | AgentStopped
    | MailPosted
    | MailDelivered
    | MailFailed
    | MailSuppressed
    | MailRequeued
)

FRAME_FACTS: frozenset[type[Fact]] = frozenset(
    {
        RunRequested,
        ProgressReported,
        MilestoneReached,
        ChunkEmitted,
        RunSucceeded,
        RunErrored,
        RunAborted,
        RunInterrupted,
        RunReattached,
        RunCleared,
        UndoBegan,
        AskOpened,
        AskAnswered,
        AskLapsed,
        AskEscalated,
        AskWithdrawn,
        RunRetried,
    }
)
"""The facts that are events of a run's stream always; `AttemptStarted` is one from the second attempt on."""
