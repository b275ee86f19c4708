"""A fiber as one durable row, and as an author is shown it. What may become of it stands in `policies.fibers`.

A row is never changed in place: each transition makes another one, so that a transaction that rolls back leaves nothing in memory either.
Whoever is at work on a fiber is named by the row: the life of the agent, and the number of the attempt or of the recovery. Nobody else's
outcome, stash or step counts, however late it comes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from perdure.ledger import pack, unpack
from perdure.policies import (
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
    """One fiber. Instants are milliseconds since the epoch; 0 stands for never.

    Attributes:
        number: orders the fibers of an agent by their acceptance.
        fn_name: the method that is its body; empty for one that `run_fiber` runs.
        digest: of its input.
        due_at_ms: not before then is its next attempt, or the next try at its recovery.
        attempt: how often the body was entered; `idle_attempts` since the last newly finished step.
        recoveries: how often its recovery hook was called since the last attempt.
        life: the life of the agent that is at work on it.
        is_recovering: its process died, and what becomes of it is not decided yet.
        input_bytes: how large its input is; 0 if it has none.
        retry: `FiberRetry` as plain data.
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

    @property
    def is_settled(self) -> bool:
        """Whether only a person can still move it."""
        return self.settled_at_ms > 0

    @property
    def is_open(self) -> bool:
        """Whether something is still to come of it by itself."""
        return not self.is_settled

    @property
    def state(self) -> FiberState:
        """Where its row stands. A `running` one of an earlier life is one whose process died."""
        is_recovering = self.status == FiberStatus.INTERRUPTED and self.is_open
        return FiberState.RECOVERING if is_recovering else FiberState(self.status)

    def is_cut_off(self, life: int) -> bool:
        """Whether its process died, seen from this life of the agent, and nobody has taken it up yet."""
        return self.status == FiberStatus.RUNNING and self.life != life

    def after(self, event: FiberEvent, now_ms: int, **changes: object) -> Fiber | None:
        """The row after an event, with other values in these fields; None if the event is ignored. Raises `IllegalTransition`."""
        state = FIBER_TRANSITIONS.next(self.state, event, f"fiber {self.fiber_id}")
        if state is None:
            return None
        return self.but(status=state.status, settled_at_ms=0 if state in FIBER_OPEN_STATES else now_ms, **changes)

    @property
    def retry_policy(self) -> FiberRetry | None:
        """When its body may be entered again."""
        return None if self.retry is None else FiberRetry(*self.retry)

    def interruption(self, *, has_hook: bool) -> Interruption:
        """What the policy wants to know of it."""
        return Interruption(
            is_waiting=self.status == FiberStatus.PENDING,
            is_managed=self.is_managed,
            has_hook=has_hook,
            recoveries=self.recoveries,
            retry=self.retry_policy,
            attempt=self.attempt,
            idle_attempts=self.idle_attempts,
        )

    def but(self, **changes: object) -> Fiber:
        """The same row with other values in these fields; what `dataclasses.replace` does, at a tenth of its cost."""
        row = object.__new__(Fiber)
        row.__dict__.update(self.__dict__, **changes)
        return row

    def body(self) -> bytes:
        """The row as it is stored: its values in the order of the fields, which is never changed; new ones come last."""
        return pack(_VALUES(self))

    @classmethod
    def load(cls, body: bytes) -> Fiber:
        """The row as it was stored. One of an older version lacks the last fields, and one of a later version has more."""
        values = unpack(body)[: len(_NAMES)]
        values[_STATUS] = FiberStatus(values[_STATUS])
        return cls(*values)

    def shown(self, life: int, snapshot: Json, *, accepted: bool = False) -> FiberInspection:
        """What an author may see of it, in this life of the agent."""
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
            metadata=self.metadata,
            snapshot=snapshot,
            error=self.error,
            created_at_ms=self.created_at_ms,
            started_at_ms=self.started_at_ms or None,
            settled_at_ms=self.settled_at_ms or None,
            next_try_at_ms=None if self.is_settled else self.due_at_ms or None,
        )


_NAMES = [each.name for each in fields(Fiber)]
_VALUES = attrgetter(*_NAMES)
_STATUS = _NAMES.index("status")


@dataclass(frozen=True, slots=True, kw_only=True)
class FiberInspection:
    """A fiber at one moment. It can be awaited for symmetry, and is itself.

    Attributes:
        status: a `FiberStatus`, which equals its text, such as `completed`.
        accepted: whether the call that returned this began the fiber; False for one that joined it.
        is_recovering: its process died, and what becomes of it is not decided yet: it is not over.
        attempt: how often its body was entered.
        recoveries: how often its recovery hook was called for the last interruption.
        snapshot: what it stashed last.
        next_try_at_ms: when it is taken up again, if it waits for that.
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

    @property
    def is_settled(self) -> bool:
        """Whether it is over; an interrupted one may still be resolved."""
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
    """Some of an agent's fibers, the newest first, and where the next page begins; None at the end."""

    fibers: tuple[FiberInspection, ...]
    cursor: str | None

    def __iter__(self) -> Iterator[FiberInspection]:
        """The fibers of this page."""
        return iter(self.fibers)

    def __len__(self) -> int:
        """How many are on this page."""
        return len(self.fibers)
