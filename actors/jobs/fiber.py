"""A fiber as a durable row, and as its author sees it. `policies.fiber_decisions` decides what becomes of it.

A row is never changed in place. Each transition makes another row, so a rollback leaves nothing in memory.
The row names who is at work on the fiber: the life of the agent, and the number of the attempt or of the recovery.
Outcomes, stashes and steps of anybody else are ignored, however late they come.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from perdure.ledger import pack, taken_out, unpack
from perdure.policies import (
    FIBER_ENTERED_NEXT,
    FIBER_OPEN_STATES,
    FIBER_TRANSITIONS,
    FiberEvent,
    FiberRetry,
    FiberState,
    FiberStatus,
    Interruption,
    Json,
)


@dataclass(frozen=True)
class Fiber:
    """One fiber. Instants are milliseconds since the epoch; 0 means never.

    Attributes:
        number: orders the fibers of an agent by their acceptance.
        fn_name: the method that is its body; empty for `run_fiber`.
        digest: of its input.
        due_at_ms: the earliest time of the next attempt or recovery.
        attempt: how often the body was entered; `idle_attempts` counts since the last new step.
        recoveries: calls of the recovery hook since the last attempt.
        life: the life of the agent that works on it.
        is_recovering: its process died, and nothing is decided yet.
        input_bytes: the size of its input; 0 without one.
        retry: `FiberRetry` as plain data.
        entered_at_ms: when the present attempt began.
        trace: where in a trace it was asked for.
        is_waiting: its body waits, and is in no process. It is entered at `due_at_ms`, or if that is 0 when an event comes.
        awaited: the events of these names are what it waits for.
        waits_since_ms, wait_ends_ms: since when, and until which moment as its body knows it; 0 if only an event ends the wait.
        waited: attempts that ended in a wait.
        over_ms: moments up to this have passed, whatever a clock says.
        round: the attempt with which the tries of its steps were counted anew.
    """

    fiber_id: str
    number: int
    name: str
    fn_name: str = ""
    digest: str = ""
    status: FiberStatus = FiberStatus.PENDING
    is_managed: bool = True
    idempotency_key: str = ""
    metadata: object = None
    error: str | None = None
    created_at_ms: int = 0
    started_at_ms: int = 0
    settled_at_ms: int = 0
    due_at_ms: int = 0
    attempt: int = 0
    idle_attempts: int = 0
    recoveries: int = 0
    life: int = 0
    is_recovering: bool = False
    input_bytes: int = 0
    retry: list[Any] | None = None
    on_recovered: str = ""
    entered_at_ms: int = 0
    trace: str = ""
    is_waiting: bool = False
    awaited: list[str] | None = None
    waits_since_ms: int = 0
    wait_ends_ms: int = 0
    waited: int = 0
    over_ms: int = 0
    round: int = 0

    @property
    def is_settled(self) -> bool:
        # Only a person can still move it.
        return self.settled_at_ms > 0

    @property
    def is_open(self) -> bool:
        return not self.is_settled

    @property
    def state(self) -> FiberState:
        if self.is_waiting:
            return FiberState.WAITING
        # Interrupted, but not settled: its recovery hook was asked.
        is_recovering = self.status == FiberStatus.INTERRUPTED and self.is_open
        return FiberState.RECOVERING if is_recovering else FiberState(self.status)

    def is_cut_off(self, life: int) -> bool:
        # Its process died, seen from this life of the agent, and nobody has taken it up.
        return self.state is FiberState.RUNNING and self.life != life

    def after(self, event: FiberEvent, now_ms: int, **changes: object) -> Fiber | None:
        """The row after an event; None if the event is ignored. Raises `IllegalTransition`."""
        state = FIBER_TRANSITIONS.next(self.state, event, f"fiber {self.fiber_id}")
        if state is None:
            return None
        settled_at_ms = 0 if state in FIBER_OPEN_STATES else now_ms
        is_waiting = state is FiberState.WAITING
        return self.but(status=state.status, settled_at_ms=settled_at_ms, is_waiting=is_waiting, **changes)

    @property
    def is_entered_next(self) -> bool:
        return self.state in FIBER_ENTERED_NEXT

    @property
    def waits(self) -> dict[str, object] | None:
        # What its body waits for, if it is in no process because of that.
        if not self.is_waiting:
            return None
        return {
            "events": list(self.awaited or ()),
            "until_ms": self.due_at_ms or None,
            "since_ms": self.waits_since_ms,
        }

    def interruption(self, *, has_hook: bool, cause: str = "") -> Interruption:
        return Interruption(
            is_waiting=self.is_entered_next,
            is_managed=self.is_managed,
            has_hook=has_hook,
            recoveries=self.recoveries,
            retry=None if self.retry is None else FiberRetry(*self.retry),
            attempt=self.attempt - self.waited,
            idle_attempts=self.idle_attempts,
            cause=cause,
        )

    def but(self, **changes: object) -> Fiber:
        row = object.__new__(Fiber)  # `dataclasses.replace` takes ten times as long
        row.__dict__.update(self.__dict__, **changes)
        return row

    def body(self) -> bytes:
        return pack(_VALUES(self))

    @classmethod
    def load(cls, body: bytes) -> Fiber:
        values = unpack(body)
        values[_STATUS] = FiberStatus(values[_STATUS])
        return cls(*values)

    def shown(self, life: int, snapshot: Json, *, accepted: bool = False) -> FiberInspection:
        is_cut_off = self.is_cut_off(life)
        return FiberInspection(
            fiber_id=self.fiber_id,
            name=self.name,
            status=FiberStatus.INTERRUPTED if is_cut_off else self.status,
            accepted=accepted,
            is_recovering=self.is_recovering or is_cut_off,
            attempt=self.attempt,
            recoveries=self.recoveries,
            idempotency_key=self.idempotency_key or None,
            metadata=taken_out(self.metadata),
            snapshot=snapshot,
            error=self.error,
            created_at_ms=self.created_at_ms,
            started_at_ms=self.started_at_ms or None,
            settled_at_ms=self.settled_at_ms or None,
            next_try_at_ms=None if self.is_settled or self.is_waiting else self.due_at_ms or None,
            waits=self.waits,
        )


_NAMES = [each.name for each in fields(Fiber)]
_VALUES = attrgetter(*_NAMES)
_STATUS = _NAMES.index("status")


@dataclass(frozen=True, slots=True, kw_only=True)
class FiberInspection:
    """A fiber at one moment. Awaiting it gives it back.

    Attributes:
        status: a `FiberStatus`, which equals its text, such as `completed`.
        accepted: whether the call that returned this began the fiber; False if the fiber existed.
        is_recovering: its process died, and nothing is decided yet: it is not over.
        attempt: how often its body was entered.
        recoveries: calls of its recovery hook for the last interruption.
        snapshot: what it stashed last.
        next_try_at_ms: when it is taken up again, if it waits for that.
        waits: what its body waits for without a process: the names of `events`, and `until_ms`, or None if only an event ends it; and
            `since_ms`. None if it does not.
    """

    fiber_id: str
    name: str
    status: FiberStatus
    accepted: bool
    is_recovering: bool
    attempt: int
    recoveries: int
    idempotency_key: str | None
    metadata: Any
    snapshot: Any
    error: str | None
    created_at_ms: int
    started_at_ms: int | None
    settled_at_ms: int | None
    next_try_at_ms: int | None
    waits: dict[str, Any] | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it is over. An interrupted fiber may still be resolved."""
        return self.settled_at_ms is not None

    @property
    def ok(self) -> bool:
        """Whether it completed."""
        return self.status == FiberStatus.COMPLETED

    def __await__(self) -> Generator[None, None, FiberInspection]:
        """Give back itself, so that `await` is right in async code and harmless to leave out."""
        return self
        yield


@dataclass(frozen=True, slots=True)
class FiberPage:
    """A page of an agent's fibers, newest first. `cursor` is that of the next page, None at the end."""

    fibers: tuple[FiberInspection, ...]
    cursor: str | None

    def __iter__(self) -> Iterator[FiberInspection]:
        return iter(self.fibers)

    def __len__(self) -> int:
        return len(self.fibers)
