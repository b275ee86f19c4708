"""What can be wrong, for the person who reads it.

    PerdureError
    ├── BadRequest                    the caller's mistake; `field` names what to change
    │   ├── ConflictingRequest        a run id was used again with other content
    │   ├── UnknownRun                no run has this id
    │   ├── UnknownAgentType          the agent's class cannot be found or imported
    │   ├── UnknownTool               no tool has this name, or its function cannot be found or imported
    │   ├── TooLarge                  a value is over its limit
    │   ├── AgentBeingDeleted         the agent is being deleted; its name is free again when that is done
    │   ├── AwaitedInsideHandler      a completion handler may not wait for a run
    │   └── AdmissionRefused          the parent's limit of concurrent runs, on `on_limit="reject"`
    ├── LedgerError                   the world's refusal, on the supervisor's side
    │   ├── LedgerLocked              another process owns the data directory
    │   ├── LedgerTooNew              a newer Perdure wrote it
    │   ├── LedgerDamaged             what was found does not verify; `perdure doctor` tells more
    │   ├── LedgerUnwritable          read-only, or no space left
    │   └── NoLongerServed            somebody stopped what served the data directory
    ├── StorageError                  the same for one agent's storage
    │   ├── StorageConflict           another transaction of this agent wrote the same rows; run it again
    │   └── StaleIncarnation          this life of the agent is over; its storage is closed to it
    └── WorldError
        ├── SupervisorUnreachable     the outcome of the call is unknown; it is repeated with the same ids
        ├── HostUnavailable           no host could be created
        ├── Overloaded                the supervisor refuses more work for now; `retry_after_ms` says when
        ├── RunBeingCleared           the id belongs to a run that is being cleared; whoever asks for it waits for that by itself
        ├── FiberStopped              code of a fiber that is over went on; what it does does not count
        ├── AgentAborted              the agent's life was ended by its parent during a call, or before it
        ├── StartTimedOut             the agent's `on_start` did not return in time, so nobody was there
        └── OutcomeUnknown            the agent's host died during a call; the call may or may not have taken effect

`IllegalTransition` (of `policies`) is not in the tree: it derives from `AssertionError`, because only a bug of ours can cause it.
Every exception carries fields, and survives pickling because the fields are its arguments.
"""

from __future__ import annotations


class PerdureError(Exception):
    """Something that Perdure tells a person about."""


class BadRequest(PerdureError):
    """A request that cannot be accepted as it is. Nothing was written."""

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


class UnknownAgentType(BadRequest):
    """The class of the agent cannot be found under its name."""


class UnknownTool(BadRequest):
    """No tool has this name, or its function cannot be found under its name."""


class AgentBeingDeleted(BadRequest):
    """The agent is being deleted with its storage. Its name is free again when that is done.

    Whoever asks for the name waits by itself, and this is what is told about a call that had been made before. With the role `sender` it is
    the one who asks, of whom nothing is done any more.
    """

    def __init__(self, agent_id: str, role: str = "recipient") -> None:
        self.agent_id, self.is_sender = agent_id, role == "sender"
        then = "nothing that it asks for is done any more" if self.is_sender else "its name is free when that is done"
        super().__init__("agent", f"{agent_id} is being deleted; {then}")
        self.args = (agent_id, role)


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


class LedgerLocked(LedgerError):
    """Another process owns the data directory."""


class LedgerTooNew(LedgerError):
    """The data directory was written by a newer version."""


class LedgerDamaged(LedgerError):
    """The ledger does not verify."""


class LedgerUnwritable(LedgerError):
    """The data directory is read-only or full."""


class NoLongerServed(LedgerError):
    """Somebody stopped what served the data directory (`perdure stop`). Who was connected is told; who opens it anew serves it again."""


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


class StaleIncarnation(StorageError):
    """This life of the agent is over."""


class WorldError(PerdureError):
    """The surroundings refused, or did not answer."""


class SupervisorUnreachable(WorldError):
    """The supervisor did not answer; whether it received the message is unknown."""


class HostUnavailable(WorldError):
    """No host could be created."""


class Overloaded(WorldError):
    """More work is waiting than the supervisor accepts."""

    def __init__(self, waiting: int, limit: int, retry_after_ms: int) -> None:
        super().__init__(waiting, limit, retry_after_ms)
        self.waiting = waiting
        self.limit = limit
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.waiting} runs are waiting (limit {self.limit}); ask again in {self.retry_after_ms} ms"


class RunBeingCleared(WorldError):
    """The id belongs to a run that is being cleared. It is free again as soon as its child has stopped and its storage is deleted.

    Nobody has to catch it: a client, an agent and an outbox ask again, with growing pauses, until the id is free.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id

    def __str__(self) -> str:
        return f"run {self.run_id!r} is being cleared; its id is free again when that is done"


class AgentAborted(WorldError):
    """The agent's life was ended by its parent. What a call had made durable by then stays; the next call begins another life."""

    def __init__(self, agent_id: str, reason: str) -> None:
        super().__init__(agent_id, reason)
        self.agent_id = agent_id
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.agent_id} was aborted: {self.reason}"


class StartTimedOut(WorldError):
    """The agent's `on_start` did not return in time, so it could not come up. Nothing of what waited for it was begun."""

    def __init__(self, agent_id: str, timeout_ms: int) -> None:
        super().__init__(agent_id, timeout_ms)
        self.agent_id = agent_id
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return (
            f"on_start of {self.agent_id} did not return within {self.timeout_ms} ms (on_start_timeout_ms) and was cancelled, so nothing"
            " that waited for it was begun; does it wait for somebody who waits for this agent? Whoever asks again has it called again"
        )


class OutcomeUnknown(WorldError):
    """The agent's host died while it answered a call, so the call may or may not have taken effect. What must take effect exactly once is
    told (`tell(handle.method, …)`), or is a run.

    One that was certainly not handed to the author's method is made again by itself, also after a supervisor's death. Certainty is
    impossible, and the call refused, if the life of the agent that may have had it is over; if the agent's last life ended so shortly
    before the call (up to ten seconds) that the caller had not heard of it; and of many lives that ended, for all but the latest.
    """

    def __init__(self, agent_id: str, method: str) -> None:
        super().__init__(agent_id, method)
        self.agent_id = agent_id
        self.method = method

    def __str__(self) -> str:
        return f"the host of {self.agent_id} may have died during {self.method}(): it may or may not have taken effect"


class FiberStopped(WorldError):
    """The fiber was cancelled or resolved, or another life of its agent is at it, while this code still ran: it may do no more steps."""

    def __init__(self, fiber_id: str, step: str) -> None:
        super().__init__(fiber_id, step)
        self.fiber_id = fiber_id
        self.step = step

    def __str__(self) -> str:
        return f"fiber {self.fiber_id!r} is over, so its step {self.step!r} is not done, or not remembered"
