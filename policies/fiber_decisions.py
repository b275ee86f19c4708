"""What happens to a fiber, a durable job inside one agent.

                waiting (without a process)
                 ▲   │
                 │   ▼
    pending ──► running ──► completed | error | aborted
       ▲           │ (its process died)
       │           ▼
       └──── interrupted, recovering ──► completed | error | aborted | interrupted

`completed`, `error` and `aborted` never change. An `interrupted` fiber is either being *recovered*, and open; or it is *settled*, because
the hook has declined or a budget is used up. Then only a person (`resolve_fiber`) moves it. An inspection tells which.

A life that finds an open fiber decides by the table. A test checks every row. A *waiting* fiber has not begun, has failed and waits for
its next attempt, or its body waits without a process. *Recoveries* count calls of the hook, and *attempts* those of the body. Both are
durable before the call, so a body or hook that kills its process uses up its budget too.

| | waiting | managed | hook | recoveries left | retry | attempts left | verdict |
|---|---|---|---|---|---|---|---|
| A | yes | – | – | – | – | – | `Enter` at its time |
| B | no | – | yes | yes | – | – | `AskHook` the hook |
| C | no | yes | yes | no | – | – | `Settle` as interrupted: the hook gave no verdict |
| D | no | yes | no | – | yes | yes | `Enter` again; finished steps are remembered |
| E | no | yes | no | – | yes | no | `Settle` as interrupted: the attempts are used up |
| F | no | yes | no | – | no | – | `Settle` as interrupted: nobody said what to do |
| G | no | no | yes | no | – | – | `Drop`: work without a record ends with its last recovery |
| H | no | no | no | – | – | – | `Drop`: there is nobody to tell |

A: the process died before the body began, or during a pause, or while the body waited. B: the ordinary death, also one during the hook.
C and G: a hook that hangs, raises or kills each time. D: a repeatable job. E: one that makes no progress. F: the default; a person
decides. H: `run_fiber` without a hook.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal, NamedTuple, Self, cast

from perdure.policies.fiber_status import FIBER_CLEANED, FIBER_SETTLED, FiberEvent, FiberStatus
from perdure.policies.limits import Limits
from perdure.policies.numbers import whole
from perdure.policies.retry import backoff_ms, jittered_ms


# Not given. None is a value.
class Unset(Enum):
    UNSET = "unset"


UNSET: Final[Any] = Unset.UNSET

Verdict = Literal["completed", "error", "aborted", "interrupted", "retry"]
VERDICTS: Final = (
    FiberEvent.COMPLETED,
    FiberEvent.FAILED,
    FiberEvent.ABORTED,
    FiberEvent.INTERRUPTED,
    FiberEvent.RETRIED,
)


@dataclass(frozen=True)
class FiberResult:
    """The verdict of a recovery hook, or of a person, on an interrupted fiber.

    Args:
        status: `retry` enters the fiber again; the others settle it, `interrupted` until it is resolved.
        error: the text kept with it; None clears that.
        snapshot: replaces the stashed value, if given.
        metadata: replaces the metadata, if given.
    """

    status: Verdict
    error: str | None = None
    snapshot: Any = UNSET
    metadata: Any = UNSET

    def __post_init__(self) -> None:
        if self.status not in VERDICTS:
            raise ValueError(f"status: {self.status!r} is none of {', '.join(VERDICTS)}")

    @classmethod
    def of(cls, given: object) -> Self | None:
        """Read what a hook or a person gave: a `FiberResult`, a status, or a dictionary of the fields. Raises `ValueError`."""
        if given is None or isinstance(given, cls):
            return given
        if isinstance(given, dict):
            try:
                return cls(**given)
            except TypeError as problem:
                raise ValueError(f"{given!r:.200} has not the fields of a FiberResult") from problem
        if isinstance(given, str):
            return cls(cast("Verdict", given))
        raise ValueError(f"{given!r:.200} is no FiberResult, no status, no dictionary of its fields, and not None")

    @property
    def event(self) -> FiberEvent:
        return FiberEvent(self.status)


@dataclass(frozen=True)
class FiberRetry:
    """The body of a fiber may be entered again after its process died, and with `on_error` also after it raised.

    Args:
        attempts_max: attempts without a newly finished step; None takes `Limits.attempts_max`.
        first_ms: the first pause. It doubles up to `most_ms`, with jitter. None takes `Limits.retry_first_ms`.
        most_ms: None takes `Limits.retry_most_ms`.
    """

    attempts_max: int | None = None
    first_ms: int | None = None
    most_ms: int | None = None
    on_error: bool = True

    def __post_init__(self) -> None:
        for field, least in (("attempts_max", 1), ("first_ms", 0), ("most_ms", 0)):
            if getattr(self, field) is not None:
                whole(field, getattr(self, field), least)

    @classmethod
    def of(cls, given: object) -> Self | None:
        """Read what an author wrote: None, a bool, a number of attempts, or a `FiberRetry`. Raises `ValueError`."""
        if given is None or given is False or isinstance(given, cls):
            return given or None
        if given is True:
            return cls()
        if isinstance(given, int):
            return cls(attempts_max=given)
        raise ValueError(f"{given!r} is not True, a number of attempts, or a FiberRetry")

    def pause_ms(self, failures: int, limits: Limits, roll: float) -> int:
        """The pause after the first, second, … failure."""
        first = limits.retry_first_ms if self.first_ms is None else self.first_ms
        most = limits.retry_most_ms if self.most_ms is None else self.most_ms
        return int(jittered_ms(backoff_ms(failures, first, most), roll))


class Interruption(NamedTuple):
    """What is known of an open fiber that this life does not run. `cause` says how its process died, if that is known. `attempt` does not
    count attempts that ended in a wait."""

    is_waiting: bool
    is_managed: bool
    has_hook: bool
    recoveries: int
    retry: FiberRetry | None
    attempt: int
    idle_attempts: int
    cause: str = ""

    @property
    def death(self) -> str:
        return f"; the last time: {self.cause}" if self.cause else ""


@dataclass(frozen=True)
class Enter:
    after_ms: int = 0


# The recovery hook is called. If it dies, the next decision waits for `then_ms`.
@dataclass(frozen=True)
class AskHook:
    then_ms: int


@dataclass(frozen=True)
class Settle:
    status: FiberStatus
    error: str | None


# Its record is deleted.
@dataclass(frozen=True)
class Drop:
    why: str


def take_up(found: Interruption, limits: Limits, roll: float) -> Enter | AskHook | Settle | Drop:
    """Decide about a fiber that another life left open, by the table above."""
    if found.is_waiting:  # A
        return Enter()
    if found.has_hook and found.recoveries < limits.fiber_recoveries_max:  # B
        return AskHook(recovery_pause_after(found.recoveries + 1, limits, roll))
    if found.has_hook:
        why = f"its recovery hook came to no verdict in {found.recoveries} tries"
        return Settle(FiberStatus.INTERRUPTED, why) if found.is_managed else Drop(why)  # C, G
    if not found.is_managed:
        return Drop(f"its process died, and no hook takes it up{found.death}")  # H
    return _enter_again(found, limits, roll)


def _enter_again(found: Interruption, limits: Limits, roll: float) -> Enter | Settle:
    if found.retry is None:  # F
        return Settle(FiberStatus.INTERRUPTED, f"its process died while it ran{found.death}")
    spent = _spent(found, limits)
    if spent:  # E
        return Settle(FiberStatus.INTERRUPTED, f"its process died while it ran, {spent}{found.death}")
    return Enter(found.retry.pause_ms(found.idle_attempts - 1, limits, roll) if found.idle_attempts > 1 else 0)  # D


def after_error(found: Interruption, error: str, limits: Limits, roll: float) -> Enter | Settle:
    if found.retry is None or not found.retry.on_error or _spent(found, limits):
        return Settle(FiberStatus.ERROR, error)
    return Enter(found.retry.pause_ms(max(1, found.idle_attempts), limits, roll))


def after_hook(result: object, found: Interruption, limits: Limits, roll: float) -> Enter | Settle | Drop:
    """Apply a hook's verdict. None leaves the fiber to its `retry`, or else interrupted."""
    if not found.is_managed:
        return Drop("recovered")
    status = result.status if isinstance(result, FiberResult) else result
    if status is None:
        return Settle(FiberStatus.INTERRUPTED, None) if found.retry is None else _enter_again(found, limits, roll)
    if status == FiberEvent.RETRIED:
        return _enter_again(found._replace(retry=found.retry or FiberRetry()), limits, roll)
    if not isinstance(status, str) or status not in FIBER_SETTLED:
        raise ValueError(f"a recovery hook returned {result!r}; it returns a FiberResult, 'retry' or None")
    return Settle(FiberStatus(status), result.error if isinstance(result, FiberResult) else None)


def recovery_pause_after(recoveries: int, limits: Limits, roll: float) -> int:
    return int(jittered_ms(backoff_ms(recoveries, limits.fiber_recovery_first_ms, limits.fiber_recovery_most_ms), roll))


def excused(found: Interruption, limits: Limits) -> int:
    """How many idle attempts it has had, if the last one does not count. One that may be entered once has had it."""
    return found.idle_attempts - (found.idle_attempts > 0 and _most(found, limits) > 1)


def _most(found: Interruption, limits: Limits) -> int:
    attempts_max = found.retry.attempts_max if found.retry is not None else None
    return limits.attempts_max if attempts_max is None else attempts_max


def _spent(found: Interruption, limits: Limits) -> str:
    attempts_max = _most(found, limits)
    if found.idle_attempts >= attempts_max:
        return f"and had {attempts_max} attempt{'s' * (attempts_max != 1)} without a finished step in between"
    if found.attempt >= limits.recovery_work_max:
        return f"and had {found.attempt} attempts in all; the limit recovery_work_max is {limits.recovery_work_max}"
    return ""


class SettledFiber(NamedTuple):
    fiber_id: str
    status: FiberStatus
    settled_at_ms: int


def outlived(settled: Iterable[SettledFiber], now_ms: int, limits: Limits) -> list[str]:
    """The fibers to delete, oldest first: the too old and the too many. Interrupted ones are kept until a person has resolved them."""
    cleaned = sorted((each for each in settled if each.status in FIBER_CLEANED), key=lambda each: each.settled_at_ms)
    surplus = max(0, len(cleaned) - limits.fibers_kept_max)
    return [
        each.fiber_id
        for place, each in enumerate(cleaned)
        if place < surplus or now_ms - each.settled_at_ms > limits.fibers_kept_ms
    ]
