"""The errors of Perdure, for the person who reads them.

    PerdureError
    ├── BadRequest                    the caller's mistake; `field` names what to change
    │   ├── ConflictingRequest        a run id was used again with other content
    │   ├── UnknownRun                no run has this id
    │   ├── RetryRefused              the run is live, has completed or was cancelled, so it is not tried again
    │   ├── EventRefused              the run has ended, or has too many events that it has not taken
    │   ├── PauseRefused              the run is not live, is being undone, or has one attempt and is at work
    │   ├── AskRefused                the run has too many open questions to people
    │   ├── UnknownAsk                no question has this id
    │   ├── AskClosed                 the question has expired, or was withdrawn
    │   │   └── AlreadyAnswered       somebody has answered it before; the words say who, by what, and when
    │   ├── AnswerRefused             what is asked has changed since it was shown
    │   ├── AnswerForbidden           the one who answers is not asked, or may not answer what the own run asks
    │   ├── RuntimeClosed             the runtime was closed, or this process was forked from the one that opened it
    │   ├── UnknownAgentType          the agent's class cannot be found or imported
    │   ├── UnknownTool               no tool has this name, or its function cannot be found or imported
    │   ├── TooLarge                  a value is over its limit
    │   ├── AgentBeingDeleted         the agent is being deleted; its name is free again when that is done
    │   ├── AgentUnreachable          nobody outside may address this agent, or there is none
    │   ├── AgentForbidden            an ancestor of this agent says that it may not be addressed
    │   ├── AwaitedInsideHandler      a completion handler may not wait for a run
    │   └── AdmissionRefused          the parent's limit of concurrent runs, on `on_limit="reject"`
    ├── LedgerError                   the ledger cannot do what was asked
    │   ├── DirectoryElsewhere        a machine has another directory at the path, or none; nothing begins there
    │   ├── LedgerLocked              another process owns the data directory
    │   ├── LedgerTooNew              a newer Perdure wrote it
    │   ├── LedgerTooOld              an older Perdure wrote it, in a format that this one does not read
    │   ├── LedgerDamaged             the ledger does not verify; `perdure doctor` tells more
    │   ├── LedgerLost                there are agents' storages, and no ledger that knows of them
    │   ├── LedgerUnwritable          read-only, or no space left
    │   ├── VersionMismatch           what serves the directory is of another version of Perdure
    │   ├── NoLongerServed            the supervisor of the data directory has ended, by `perdure stop` for example
    │   └── ServedElsewhere           another Ray serves the bucket; it is not taken from one that lives unless that is asked for
    ├── StorageError                  an agent's storage cannot do what was asked
    │   ├── StorageConflict           another transaction of this agent wrote the same rows; run it again
    │   ├── StorageLost               the agent's storage lacks what it had; the operator decides
    │   ├── MigrationFailed           `migrate` raised, so the agent stays at its version and does not come up
    │   ├── StorageTooNew             a newer version of the class wrote it
    │   └── StaleIncarnation          this life of the agent is over; its storage is closed to it
    ├── StepError                     a step of a run or a fiber did not come to a value
    │   ├── StepFailed                its job raised in every try that it may have
    │   ├── StepTimedOut              its time limit is over; it is a `TimeoutError` too
    │   └── StepOutcomeUnknown        it had begun before a death, and its probe cannot tell what came of it
    └── WorldError                    Ray, a host or the supervisor refused, or did not answer
        ├── SupervisorUnreachable     the outcome of the call is unknown; it is repeated with the same ids
        ├── HostUnavailable           no host comes up; the words tell the cause
        │   └── NoSuchNode            no node of the cluster has what the class asks for
        ├── Overloaded                the supervisor refuses more work for now; `retry_after_ms` says when
        ├── BucketUnreachable         the bucket has not answered for a while, so new work is refused until it does
        ├── RunBeingCleared           the id belongs to a run that is being cleared; requests wait for that by themselves
        ├── FiberStopped              the fiber has ended while its code still ran
        ├── AgentAborted              the agent's parent ended its life during a call, or before it
        ├── WaitTimedOut              an event that a run waited for did not come in time
        ├── AskExpired                nobody answered a question of a run in time
        ├── StartTimedOut             the agent's `on_start` did not return in time, so the agent did not start
        └── OutcomeUnknown            the agent's host died during a call; the call may or may not have taken effect

`IllegalTransition` (of `policies`) is not in the tree: it derives from `AssertionError`, because only a bug of ours can cause it.
Every exception carries fields, and survives pickling because the fields are its arguments.
"""

from __future__ import annotations

from typing import Final

UNREACHABLE_S: Final = 5.0
"""For how long new work waits for a bucket that does not answer, before it is refused (`BucketUnreachable`)."""
UNREACHABLE_RETRY_MS: Final = 2_000
"""After how long it may be asked for again."""


class PerdureError(Exception):
    """Any error that Perdure raises on purpose."""


class BadRequest(PerdureError):
    """The request cannot be accepted as it is. Nothing was written."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(field, problem)
        self.field = field
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.field}: {self.problem}"


class ConflictingRequest(BadRequest):
    """The run id exists with other content. Use another id, or repeat the request as it was."""


class UnknownRun(BadRequest):
    """No run has this id."""


class RetryRefused(BadRequest):
    """Only a run that failed, was given up or is parked is tried again."""


class EventRefused(BadRequest):
    """The run or the fiber has ended, or has too many events that it has not taken. The event was not sent."""


class PauseRefused(BadRequest):
    """Only a live run is paused, and goes on. One whose steps are being undone is not paused, nor one at work that has one attempt."""


class AskRefused(BadRequest):
    """The run has too many open questions to people. This one was not asked."""


class UnknownAsk(BadRequest):
    """No question has this id."""


class AskClosed(BadRequest):
    """The question has expired, or was withdrawn. The answer changed nothing."""


class AlreadyAnswered(AskClosed):
    """Somebody has answered the question before; the words say who, by what, and when. The answer changed nothing."""


class AnswerRefused(BadRequest):
    """What is asked has changed since it was shown. The answer changed nothing."""


class AnswerForbidden(BadRequest):
    """The one who answers is not asked, or began the run itself. The answer changed nothing."""


class RuntimeClosed(BadRequest):
    """The runtime was closed, or this process was forked from the one that opened it. Nothing was asked; or if it was closed while somebody
    waited, nobody knows what became of it."""


class UnknownAgentType(BadRequest):
    """The class of the agent cannot be found under its name."""


class UnknownTool(BadRequest):
    """No tool has this name, or its function cannot be found under its name."""


class AgentBeingDeleted(BadRequest):
    """The agent is being deleted with its storage. Its name is free again when that is done.

    Calls that are made meanwhile wait by themselves. This error ends a call that was made before the deletion, or, with the role `sender`,
    a request of the agent that is being deleted.
    """

    def __init__(self, agent_id: str, role: str = "recipient") -> None:
        self.agent_id, self.is_sender = agent_id, role == "sender"
        then = "what it requested was not done" if self.is_sender else "its name is free again when that is done"
        super().__init__("agent", f"{agent_id} is being deleted; {then}")
        self.args = (agent_id, role)


class AgentUnreachable(BadRequest):
    """Nobody outside may address this agent, or there is none and a call may not create it. Nothing was put on record."""

    def __init__(self, agent_id: str, why: str) -> None:
        self.agent_id, self.why = agent_id, why
        super().__init__("agent", f"{agent_id} cannot be reached: {why}")
        self.args = (agent_id, why)


class AgentForbidden(BadRequest):
    """An ancestor of this agent says that it may not be addressed, and that it may be known to exist."""

    def __init__(self, agent_id: str, why: str) -> None:
        self.agent_id, self.why = agent_id, why
        super().__init__("agent", f"{agent_id} may not be addressed: {why}")
        self.args = (agent_id, why)


class TooLarge(BadRequest):
    """A value is over its limit; the problem says the limit."""


class AwaitedInsideHandler(BadRequest):
    """A handler runs inside one transaction, so it may start runs but not wait for them."""


class AdmissionRefused(BadRequest):
    """The parent has as many live runs as it allows. The run id was not used up."""


class LedgerError(PerdureError):
    """The ledger cannot do what was asked."""

    def __init__(self, path: str, problem: str, advice: str = "") -> None:
        super().__init__(path, problem, advice)
        self.path = path
        self.problem = problem
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}" + (f" — {self.advice}" if self.advice else "")


class DirectoryElsewhere(LedgerError):
    """A machine has another directory at the path, or none: it does not share the storage, or that is not mounted, or the directory was
    deleted or moved while it was in use. Nothing begins there, and nothing more is acknowledged."""


class LedgerLocked(LedgerError):
    """Another process owns the data directory."""


class LedgerTooNew(LedgerError):
    """The data directory was written by a newer version."""


class LedgerTooOld(LedgerError):
    """The data directory was written by an older version, in a format that this one does not read."""


class LedgerDamaged(LedgerError):
    """The ledger does not verify."""


class LedgerLost(LedgerError):
    """The directory has storages of agents and no ledger. None is begun, because it would know of none of them."""


class LedgerUnwritable(LedgerError):
    """The data directory is read-only or full, or a part of it cannot be read."""


class VersionMismatch(LedgerError):
    """The supervisor and this process are of versions of Perdure that do not understand each other. Nothing was asked of it.

    Attributes:
        supervisor, peer: the version of each, and the digest of the messages that it knows.
    """

    def __init__(self, supervisor: str, peer: str) -> None:
        words = f"what serves it is Perdure {supervisor}, and this process is Perdure {peer}; their messages differ"
        advice = (
            "end what serves it with `perdure stop`, which loses nothing, and open it with the version that is to serve it"
            " from then on, or use the other version here"
        )
        super().__init__("this directory", words, advice)
        self.supervisor, self.peer = supervisor, peer
        self.args = (supervisor, peer)


class NoLongerServed(LedgerError):
    """The supervisor of the data directory has ended, by `perdure stop` or under one who only looks. Opening it again starts another."""


class ServedElsewhere(LedgerError):
    """Another Ray serves the bucket, or has taken it over. The problem names its machine, its address and since when."""


class StorageError(PerdureError):
    """An agent's storage cannot do what was asked."""

    def __init__(self, agent_id: str, problem: str) -> None:
        super().__init__(agent_id, problem)
        self.agent_id = agent_id
        self.problem = problem

    def __str__(self) -> str:
        return f"storage of {self.agent_id}: {self.problem}"


class StorageConflict(StorageError):
    """Another transaction of this agent wrote the same rows first."""


WAY_OUT = (
    "Put a copy of the file back that has what is missing. Only if there is none any more, let the agent begin anew with `perdure forget`,"
    " which deletes what is left of it"
)


class StorageLost(StorageError):
    """The storage lacks something that the agent had written, so the agent does not go on as if that had never been. It goes on when a copy
    is put back that has it. `perdure forget` deletes the agent, so that it begins anew."""


class MigrationFailed(StorageError):
    """The class has a newer version than the storage, and its `migrate` raised. What the agent keeps is as it was."""

    def __init__(self, agent_id: str, version: int, wanted: int, error: str) -> None:
        what = f"migrate from version {version} to {wanted} raised {error}; it stays at {version}, and the agent waits for other code"
        super().__init__(agent_id, what)
        self.version, self.wanted, self.error = version, wanted, error
        self.args = (agent_id, version, wanted, error)


class StorageTooNew(StorageError):
    """A newer version of the class wrote the storage."""

    def __init__(self, agent_id: str, version: int, wanted: int) -> None:
        super().__init__(
            agent_id,
            f"it is of version {version} of its class, and this code is version {wanted}; bring the newer code back",
        )
        self.version, self.wanted = version, wanted
        self.args = (agent_id, version, wanted)


class StaleIncarnation(StorageError):
    """This life of the agent is over."""


class StepError(PerdureError):
    """A step did not come to a value. `owner` is the run or the fiber."""

    def __init__(self, owner: str, step: str, *more: object) -> None:
        # `OSError`, which a `TimeoutError` is, would make other fields of them
        BaseException.__init__(self, owner, step, *more)
        self.owner, self.step = owner, step


class StepFailed(StepError):
    """The job of a step has raised in every try that its `retry` allows. What it raised last is the cause; of one that failed in an earlier
    attempt only the words are left, `error`."""

    def __init__(self, owner: str, step: str, tries: int, error: str) -> None:
        super().__init__(owner, step, tries, error)
        self.tries, self.error = tries, error

    def __str__(self) -> str:
        times = f"{self.tries} tries" if self.tries != 1 else "its one try"
        return f"step {self.step!r} of {self.owner!r} has failed in {times}, as many as its retry allows: {self.error}"


class StepTimedOut(StepError, TimeoutError):
    """The time limit of a step is over, counted from when it was first begun, with all its tries, pauses and deaths. Whether its job took
    effect is unknown, as after any time limit."""

    def __init__(self, owner: str, step: str, timeout_ms: int) -> None:
        super().__init__(owner, step, timeout_ms)
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return (
            f"step {self.step!r} of {self.owner!r} came to no value within {self.timeout_ms} ms of its first beginning"
        )


class StepOutcomeUnknown(StepError):
    """The job of a step had begun, a death or its time limit came between, and its probe cannot tell what came of it. It is not done
    again."""

    def __str__(self) -> str:
        what = f"the job of step {self.step!r} of {self.owner!r} had begun"
        return f"{what}, and its probe cannot tell whether it took effect; it was not done again"


class WorldError(PerdureError):
    """Ray, a host or the supervisor refused, or did not answer."""


class SupervisorUnreachable(WorldError):
    """The supervisor did not answer; whether it received the message is unknown."""


class HostUnavailable(WorldError):
    """No host comes up for the agent, and it was tried several times. A run that was accepted stays so, and goes on when a host comes; ask
    for it again under its id to wait for that. A call was not made."""


class NoSuchNode(HostUnavailable):
    """No node of the cluster has what the class asks for, so no host can ever come up for it, unless such a node joins."""


class Overloaded(WorldError):
    """More work is waiting than the supervisor accepts."""

    def __init__(self, waiting: int, limit: int, retry_after_ms: int) -> None:
        super().__init__(waiting, limit, retry_after_ms)
        self.waiting = waiting
        self.limit = limit
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.waiting} runs are waiting (waiting_max is {self.limit}), so this one was refused; retry in {self.retry_after_ms} ms"


class BucketUnreachable(WorldError):
    """The bucket that holds the ledger has not answered for a while. Nothing was accepted, so ask again in `retry_after_ms`.

    What was accepted before goes on by itself when the bucket answers, and questions are answered meanwhile.
    """

    def __init__(self, url: str, unanswered_s: float, trouble: str, retry_after_ms: int) -> None:
        super().__init__(url, unanswered_s, trouble, retry_after_ms)
        self.url = url
        self.unanswered_s = unanswered_s
        self.trouble = trouble
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        because = f" ({self.trouble})" if self.trouble else ""
        return (
            f"{self.url} has not answered for {self.unanswered_s:.0f} s{because}, so this was refused; what was accepted goes on by itself"
            f" when it answers, and questions are answered meanwhile; retry in {self.retry_after_ms} ms"
        )


class RunBeingCleared(WorldError):
    """The id belongs to a run that is being cleared. It is free again when the run's child has stopped and its storage is deleted.

    Nobody has to catch this: clients and agents ask again, with growing pauses, until the id is free.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id

    def __str__(self) -> str:
        return f"run {self.run_id!r} is being cleared; its id is free again when that is done"


class AgentAborted(WorldError):
    """The agent's parent ended its life. What a call had made durable by then stays. The next call begins another life."""

    def __init__(self, agent_id: str, reason: str) -> None:
        super().__init__(agent_id, reason)
        self.agent_id = agent_id
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.agent_id} was aborted: {self.reason}"


class WaitTimedOut(WorldError, TimeoutError):
    """An event that a run or a fiber waited for did not come in time. If it comes later it is there for the next wait. Of `run_id` and
    `fiber_id` the other one is empty."""

    def __init__(self, run_id: str, event: str, fiber_id: str = "") -> None:
        super().__init__(run_id, event, fiber_id)
        self.run_id = run_id
        self.event = event
        self.fiber_id = fiber_id

    def __str__(self) -> str:
        whose = f"fiber {self.fiber_id!r}" if self.fiber_id else f"run {self.run_id!r}"
        return f"event {self.event!r} did not come in time for {whose}"


class AskExpired(WorldError, TimeoutError):
    """Nobody answered a question of a run in time, and it says nothing of what holds `otherwise`."""

    def __init__(self, run_id: str, question: str) -> None:
        super().__init__(run_id, question)
        self.run_id = run_id
        self.question = question

    def __str__(self) -> str:
        return f"nobody answered {self.question!r:.200} of run {self.run_id!r} in time"


class StartTimedOut(WorldError):
    """The agent's `on_start` did not return in time, so the agent did not start. Nothing that waited for it was begun."""

    def __init__(self, agent_id: str, timeout_ms: int) -> None:
        super().__init__(agent_id, timeout_ms)
        self.agent_id = agent_id
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return (
            f"on_start of {self.agent_id} did not return within {self.timeout_ms} ms (on_start_timeout_ms) and was cancelled. Nothing that"
            " waited for the agent was begun. on_start must not wait for an agent that waits for this one. The next request calls it again"
        )


class OutcomeUnknown(WorldError):
    """The agent's host died while it answered a call, so the call may or may not have taken effect. For work that must take effect exactly
    once, use `tell(handle.method, …)` or a run.

    A call that certainly did not reach the author's method is made again by itself, also after the supervisor died. It is uncertain, and
    this error is raised, if the life of the agent that may have had the call is over, if the agent's last life ended up to ten seconds
    before the call, so that the caller had not heard of it, or if that end is too long ago to be remembered.
    """

    def __init__(self, agent_id: str, method: str, cause: str = "") -> None:
        super().__init__(agent_id, method, cause)
        self.agent_id = agent_id
        self.method = method
        self.cause = cause

    def __str__(self) -> str:
        died = f"the host of {self.agent_id} may have died during {self.method}()"
        known = f". Of the agent's last life is known: {self.cause}" if self.cause else ""
        return f"{died}, which may or may not have taken effect; the call was not repeated{known}"


class FiberStopped(WorldError):
    """The fiber was cancelled or resolved, or another life of its agent runs it, while this code still ran. It may take no more steps."""

    def __init__(self, fiber_id: str, step: str) -> None:
        super().__init__(fiber_id, step)
        self.fiber_id = fiber_id
        self.step = step

    def __str__(self) -> str:
        return (
            f"fiber {self.fiber_id!r} has ended, so its step {self.step!r} was not done, or its result was not stored"
        )
