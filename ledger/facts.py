"""Facts: what has happened, in the past tense, for ever.

A fact is a frozen tuple of plain data, named by its class. It is stored under its class name with its fields in order, so a field
may only be added at the end and with a default: that is how an old row is read by new code (`codec`).
"""

from __future__ import annotations

from typing import Any, NamedTuple


class SupervisorStarted(NamedTuple):
    """A supervisor life began. Its epoch fences all earlier ones; `limits` are those by which it decides."""

    epoch: int
    limits: dict[str, float] | None = None


class RunRequested(NamedTuple):
    """A parent asked for a run. `input` is None when it stands in the payload table, `options` holds what
    differs from defaults, and `life` is the incarnation of the parent that asked. By `mark` its mail differs from that
    of an earlier run of the same id which was cleared."""

    run_id: str
    agent_type: str
    parent: str
    parent_run: str
    digest: str
    input: bytes | None
    options: dict[str, Any]
    life: int = 0
    mark: int = 0


class AttemptStarted(NamedTuple):
    """The run was given a place. With `collect` the child may hand over a result that it already has, but not run again."""

    run_id: str
    attempt: int
    incarnation: int
    host_id: str
    collect: bool = False


class RunStarted(NamedTuple):
    """The host says that the attempt is at work."""

    run_id: str
    attempt: int


class ProgressReported(NamedTuple):
    """The child is alive and this far. `body` is encoded plain data: fraction, message, phase, data."""

    run_id: str
    attempt: int
    body: bytes


class MilestoneReached(NamedTuple):
    """The `occurrence`-th milestone of this name; `number` counts the run's milestones from 0."""

    run_id: str
    attempt: int
    number: int
    name: str
    occurrence: int
    body: bytes


class ChunkEmitted(NamedTuple):
    """The `number`-th piece of the child's stream in this attempt."""

    run_id: str
    attempt: int
    number: int
    body: bytes


class RunCompleted(NamedTuple):
    """The child returned. `output` is None when it stands in the payload table; `large` says so."""

    run_id: str
    attempt: int
    output: bytes | None
    summary: str
    released: bool
    large: bool = False


class RunFailed(NamedTuple):
    """The child raised, or could not be carried to an end."""

    run_id: str
    attempt: int
    error: str
    released: bool


class RunAborted(NamedTuple):
    """Somebody cancelled the run. This is also the tombstone that keeps a late start from happening (spec W-13)."""

    run_id: str
    reason: str


class RunInterrupted(NamedTuple):
    """The parent stopped waiting; a late true result may still repair this."""

    run_id: str
    reason: str
    child_still_running: bool | None
    error: str


class TeardownBegan(NamedTuple):
    """A budget ran out: the child is being stopped, and its true end still wins until it has stopped (spec W-55)."""

    run_id: str
    reason: str


class AttemptLost(NamedTuple):
    """The attempt ended without a result: its host died, or never started it. The next one may begin at `retry_at_ms`."""

    run_id: str
    attempt: int
    cause: str
    retry_at_ms: int


class RunReattached(NamedTuple):
    """A later life of the parent asked for the run again; silence is measured from here."""

    run_id: str
    life: int
    attempt: int = 0


class RunCleared(NamedTuple):
    """The run was retained until its owner cleared it. Nothing of it comes back."""

    run_id: str


class AgentActivated(NamedTuple):
    """An agent was given a place for other work than a run of its own: mail, a call, or an unclean end."""

    agent_id: str
    incarnation: int
    host_id: str
    home: list[Any] | None = None


class AgentReleased(NamedTuple):
    """The agent left its place cleanly: nothing of its work is in memory any more."""

    agent_id: str
    incarnation: int


class AgentLost(NamedTuple):
    """The agent's host died under it. It may owe work, so it is woken again at `wake_at_ms`."""

    agent_id: str
    incarnation: int
    wake_at_ms: int


class AlarmSet(NamedTuple):
    """The agent must be awake at `at_ms`, whatever becomes of its process until then; with 0 at no time. `home` is what its class asks
    of its host."""

    agent_id: str
    at_ms: int
    home: list[Any] | None = None


class AlarmRang(NamedTuple):
    """The time of an agent's alarm came. It owes work from then on: a life that was there already says what comes next, or another one
    is begun."""

    agent_id: str


class AgentDoomed(NamedTuple):
    """The agent and all that descends from it are to be deleted. Nothing of them begins any more."""

    agent_id: str


class AgentForgotten(NamedTuple):
    """The storages of a doomed agent and its descendants are deleted. Their names are free again."""

    agent_id: str


class AgentStopped(NamedTuple):
    """The present lives of the agent and of all that descends from it shall end. What they owe is done by the next ones."""

    agent_id: str


class MailPosted(NamedTuple):
    """Somebody told an agent something: the mail calls `method` there with the arguments in `body`. `home` is what its class asks of
    its host, `sender` is an agent, or empty for somebody outside."""

    mail_id: str
    recipient: str
    sender: str
    method: str
    body: bytes
    home: list[Any] | None = None


class MailDelivered(NamedTuple):
    """The recipient's transaction with these mails' effects is durable."""

    recipient: str
    mail_ids: list[str]


class MailFailed(NamedTuple):
    """A handler raised. The mail is tried again at `retry_at_ms`, or parked when that is None."""

    mail_id: str
    error: str
    retry_at_ms: int | None


class MailSuppressed(NamedTuple):
    """The mail lost its meaning before it was delivered: its run was cleared."""

    mail_id: str


class MailRequeued(NamedTuple):
    """A person asked that a parked mail be tried again."""

    mail_id: str


Fact = (
    SupervisorStarted
    | RunRequested
    | AttemptStarted
    | RunStarted
    | ProgressReported
    | MilestoneReached
    | ChunkEmitted
    | RunCompleted
    | RunFailed
    | RunAborted
    | RunInterrupted
    | TeardownBegan
    | AttemptLost
    | RunReattached
    | RunCleared
    | AgentActivated
    | AgentReleased
    | AgentLost
    | AlarmSet
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

RUN_FACTS: tuple[type[Fact], ...] = (
    RunRequested,
    AttemptStarted,
    RunStarted,
    ProgressReported,
    MilestoneReached,
    ChunkEmitted,
    RunCompleted,
    RunFailed,
    RunAborted,
    RunInterrupted,
    TeardownBegan,
    AttemptLost,
    RunReattached,
    RunCleared,
)
"""The facts whose subject is a run."""

FRAME_FACTS: frozenset[type[Fact]] = frozenset(
    {
        RunRequested,
        ProgressReported,
        MilestoneReached,
        ChunkEmitted,
        RunCompleted,
        RunFailed,
        RunAborted,
        RunInterrupted,
        RunReattached,
        RunCleared,
    }
)
"""The facts that are events of a run's stream always; `AttemptStarted` is one from the second attempt on."""
