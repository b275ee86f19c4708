"""What happens to a chat turn that was cut off: which recovery it needs, and whether its bounds allow one.

A turn is one durable row. Its *incident* is part of the row: opened when the turn is first found cut off, evaluated each further time, and
gone when the turn completes.

- Progress and work are counted per turn, so turns do not affect each other. A chunk counts when it is *produced*, never when it is
  replayed, stored or read again. A milestone always counts: a part begins, a call is complete, a call has its result. Content counts at
  most once in five seconds, and first after a restart: many deltas are not much work.
- A sealed incident (`exhausted`, `failed` or `skipped`) is never evaluated again.
- Each entry of a turn counts: the first one, and then each recovery that got so far that the turn was begun again. Deaths come in storms,
  so those that came before that count once in 30 s. Stalls do not, so each counts. From the second loss in a row on there is a pause
  between the beginnings of two attempts, which doubles, with jitter. So a turn that ends its process is entered `max_attempts` + 1 times.
- After a death any progress resets the attempts. After a stall only a finished step or a settled call does: a provider that says one word
  and falls silent makes no progress.
- A turn that waits for a person is *parked*, at most for `parked_deadline_ms`. Only its own parts can park it.

The bounds, in the order in which they are checked, and what resets each:

| reason | crossed when | reset by |
|---|---|---|
| `out_of_memory` | deaths of memory > `max_oom_retries` | nothing |
| `too_many_stalls` | stalls > 20 | nothing |
| `work_budget_exceeded` | progress since the incident opened > `max_recovery_work` | nothing |
| `no_progress_timeout` | silence > `no_progress_timeout_ms` | progress, waiting for a person or for its place |
| `max_attempts_exceeded` | attempts in a row > `max_attempts` | progress |
| `recovery_aborted` | `should_keep_recovering` said False | – |
| `awaiting_client_deadline` | parked for longer than `parked_deadline_ms` | the answer |

One meter must never reset: a turn that makes progress before each death would loop for ever (Cloudflare #1825). The first detection is
never sealed, except by `max_oom_retries=0`, which asks for just that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from perdure.policies.chat_config import TERMINAL_MESSAGE, ChatRecovery, ExhaustedContext, ProgressContext
from perdure.policies.json_types import JsonObject
from perdure.policies.retry import backoff_ms, jittered_ms
from perdure.policies.ui_messages import Part

DEBOUNCE_MS = 30_000
STALLS_MAX = 20
FIRST_PAUSE_MS = 1_000
PAUSE_MAX_MS = 30_000
CONTENT_WINDOW_MS = 5_000

_MILESTONES = frozenset(
    {
        "text-start",
        "reasoning-start",
        "tool-input-available",
        "tool-output-available",
        "tool-output-error",
        "tool-output-denied",
    }
)
_CONTENT = frozenset({"text-delta", "reasoning-delta", "tool-input-delta"})


class RecoveryKind(StrEnum):
    RETRY = "retry"
    CONTINUE = "continue"
    SUPERSEDED = "superseded"
    PARK = "park"


def classify_turn(
    *, has_content: bool, is_continuation: bool, is_newest_user_its_own: bool, is_awaiting_client: bool
) -> RecoveryKind:
    """The recovery that a cut-off turn needs, by what is durable.

    | | newest user message is the turn's | waits for a person | content | continuation | kind |
    |---|---|---|---|---|---|
    | 1 | no | – | – | – | `superseded`: the user has gone on |
    | 2 | yes | yes | – | – | `park` |
    | 3 | yes | no | yes | – | `continue` after the content |
    | 4 | yes | no | no | yes | `continue` the message that it continued |
    | 5 | yes | no | no | no | `retry` |

    `is_newest_user_its_own` is also true if the turn answers no user message and there is none.
    """
    if not is_newest_user_its_own:
        return RecoveryKind.SUPERSEDED
    if is_awaiting_client:
        return RecoveryKind.PARK
    return RecoveryKind.CONTINUE if has_content or is_continuation else RecoveryKind.RETRY


def keeps_partial(*, persist: bool | None, has_settled_tools: bool) -> bool:
    return has_settled_tools or persist is not False


# The last three are final.
class IncidentStatus(StrEnum):
    ATTEMPTING = "attempting"
    SCHEDULED = "scheduled"
    PARKED = "parked"
    SKIPPED = "skipped"
    FAILED = "failed"
    EXHAUSTED = "exhausted"


SEALED = frozenset({IncidentStatus.SKIPPED, IncidentStatus.FAILED, IncidentStatus.EXHAUSTED})


@dataclass(frozen=True)
class Incident:
    """The recovery of one turn so far. `losses` counts interruptions in a row without progress."""

    incident_id: str
    request_id: str
    root_id: str
    kind: RecoveryKind
    first_seen_at_ms: float
    last_attempt_at_ms: float
    last_progress_at_ms: float
    window_at_ms: float
    progress: int
    work_baseline: int
    max_attempts: int
    attempt: int = 1
    losses: int = 1
    oom_attempts: int = 0
    parked_at_ms: float | None = None
    status: IncidentStatus = IncidentStatus.ATTEMPTING
    reason: str = ""
    stalls: int = 0
    settled: int = 0

    @property
    def is_sealed(self) -> bool:
        return self.status in SEALED

    @property
    def work(self) -> int:
        return self.progress - self.work_baseline

    def as_row(self) -> JsonObject:
        return {name: str(value) if isinstance(value, StrEnum) else value for name, value in asdict(self).items()}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Incident:
        return cls(**{**row, "kind": RecoveryKind(row["kind"]), "status": IncidentStatus(row["status"])})

    def moved(self, status: IncidentStatus, reason: str = "") -> Incident:
        return self if self.is_sealed else replace(self, status=status, reason=reason)


class TurnInterruption(NamedTuple):
    """What is known of a cut-off turn. `progress` is its counter, and `settled` that of its finished steps and settled calls. Until
    `waited_until_ms` another turn of the agent ran. `was_entered` says that it was at work again since it was cut off last, and
    `was_stopped` that its process was ended on purpose."""

    request_id: str
    root_id: str
    user_message_id: str | None
    kind: RecoveryKind
    progress: int
    is_awaiting_client: bool = False
    is_out_of_memory: bool = False
    waited_until_ms: float = 0
    is_stall: bool = False
    settled: int = 0
    was_entered: bool = False
    was_stopped: bool = False


# The incident to store, and the decision. If `asks_predicate`, ask `should_keep_recovering`, and apply False by `declined`.
class Evaluation(NamedTuple):
    incident: Incident
    is_exhausted: bool
    is_new: bool = False
    asks_predicate: bool = False

    def declined(self) -> Evaluation:
        return Evaluation(self.incident.moved(IncidentStatus.EXHAUSTED, "recovery_aborted"), is_exhausted=True)


def evaluate(incident: Incident | None, cut: TurnInterruption, config: ChatRecovery, now_ms: float) -> Evaluation:
    if incident is not None and incident.is_sealed:
        return Evaluation(incident, is_exhausted=True)
    seen = _opened(cut, config, now_ms) if incident is None else _seen_again(incident, cut, config, now_ms)
    reason = _crossed(seen, config, now_ms, is_new=incident is None)
    if reason:
        return Evaluation(seen.moved(IncidentStatus.EXHAUSTED, reason), is_exhausted=True, is_new=incident is None)
    asks = incident is not None and seen.parked_at_ms is None and config.should_keep_recovering is not None
    return Evaluation(seen, is_exhausted=False, is_new=incident is None, asks_predicate=asks)


def _opened(cut: TurnInterruption, config: ChatRecovery, now_ms: float) -> Incident:
    return Incident(
        incident_id=f"{cut.root_id}:{cut.user_message_id or ''}",
        request_id=cut.request_id,
        root_id=cut.root_id,
        kind=cut.kind,
        first_seen_at_ms=now_ms,
        last_attempt_at_ms=now_ms,
        last_progress_at_ms=now_ms,
        window_at_ms=now_ms,
        progress=cut.progress,
        work_baseline=cut.progress,
        max_attempts=config.max_attempts,
        oom_attempts=int(cut.is_out_of_memory),
        parked_at_ms=now_ms if cut.is_awaiting_client else None,
        stalls=int(cut.is_stall),
        settled=cut.settled,
    )


def _seen_again(known: Incident, cut: TurnInterruption, config: ChatRecovery, now_ms: float) -> Incident:
    has_moved = cut.progress > known.progress
    # After a stall words are no progress: a provider that says one word and falls silent would go on for ever.
    has_progressed = cut.settled > known.settled if cut.is_stall else has_moved
    was_answered = known.parked_at_ms is not None and not cut.is_awaiting_client
    # Deaths come in storms. One before the turn was at work again counts only once in a while.
    is_debounced = not (has_progressed or cut.is_stall or cut.was_entered) and now_ms - known.window_at_ms < DEBOUNCE_MS
    is_excused = cut.is_awaiting_client or cut.was_stopped
    counts = not (is_debounced or is_excused)
    parked_at_ms = now_ms if known.parked_at_ms is None else known.parked_at_ms
    return replace(
        known,
        request_id=cut.request_id,
        kind=cut.kind,
        status=IncidentStatus.ATTEMPTING,
        reason="",
        attempt=1 if has_progressed else known.attempt + int(counts),
        losses=1 if has_progressed else known.losses + int(not is_excused),
        max_attempts=config.max_attempts,
        last_attempt_at_ms=now_ms,
        last_progress_at_ms=now_ms
        if has_moved or was_answered or cut.is_awaiting_client
        else max(known.last_progress_at_ms, min(cut.waited_until_ms, now_ms)),
        window_at_ms=now_ms if has_progressed or counts else known.window_at_ms,
        progress=max(known.progress, cut.progress),
        oom_attempts=known.oom_attempts + int(cut.is_out_of_memory),
        parked_at_ms=parked_at_ms if cut.is_awaiting_client else None,
        stalls=known.stalls + int(cut.is_stall),
        settled=max(known.settled, cut.settled),
    )


def _crossed(seen: Incident, config: ChatRecovery, now_ms: float, *, is_new: bool) -> str:
    if seen.parked_at_ms is not None:  # while it waits for a person only this bound counts
        return "awaiting_client_deadline" if now_ms - seen.parked_at_ms > config.parked_deadline_ms else ""
    if seen.oom_attempts > config.max_oom_retries:
        return "out_of_memory"
    if is_new:  # the first detection is never sealed by the bounds that follow
        return ""
    if seen.stalls > STALLS_MAX:
        return "too_many_stalls"
    if math.isfinite(config.max_recovery_work) and seen.work > config.max_recovery_work:
        return "work_budget_exceeded"
    if now_ms - seen.last_progress_at_ms > config.no_progress_timeout_ms:
        return "no_progress_timeout"
    return "max_attempts_exceeded" if seen.attempt > config.max_attempts else ""


def progress_context(incident: Incident, now_ms: float) -> ProgressContext:
    return ProgressContext(**_told_of(incident), work=incident.work, age_ms=now_ms - incident.first_seen_at_ms)


def exhausted_context(
    incident: Incident, config: ChatRecovery, *, because: str, stream_id: str, created_at_ms: float, parts: list[Part]
) -> ExhaustedContext:
    # `parts` is the answer so far, and `because` says what the last attempt broke off of.
    return ExhaustedContext(
        **_told_of(incident),
        stream_id=stream_id,
        created_at_ms=created_at_ms,
        reason=incident.reason or "max_attempts_exceeded",
        terminal_message=_terminal_message(incident, config, because),
        partial_text="".join(part["text"] for part in parts if part.get("type") == "text"),
        partial_parts=parts,
    )


def _terminal_message(incident: Incident, config: ChatRecovery, because: str) -> str:
    # What the author says instead, is said alone.
    if config.terminal_message != TERMINAL_MESSAGE:
        return config.terminal_message
    bound = _BOUNDS.get(incident.reason or "max_attempts_exceeded", "").format(config=config, stalls_max=STALLS_MAX)
    if incident.reason == "awaiting_client_deadline":
        told = "Nobody has answered in time"
    elif incident.losses > 1:
        told = f"{incident.losses} attempts in a row broke off, the last one because {because}"
    else:
        told = f"The attempt broke off because {because}"
    return f"{TERMINAL_MESSAGE} ({'; '.join(filter(None, (told, bound)))}.)"


_BOUNDS = {
    "out_of_memory": "chat_recovery.max_oom_retries is {config.max_oom_retries}",
    "too_many_stalls": "a turn may stall {stalls_max} times",
    "work_budget_exceeded": "chat_recovery.max_recovery_work is {config.max_recovery_work:g}",
    "no_progress_timeout": "chat_recovery.no_progress_timeout_ms is {config.no_progress_timeout_ms}",
    "max_attempts_exceeded": "chat_recovery.max_attempts is {config.max_attempts}",
    "recovery_aborted": "chat_recovery.should_keep_recovering said no",
    "awaiting_client_deadline": "chat_recovery.parked_deadline_ms is {config.parked_deadline_ms:g}",
}


def _told_of(incident: Incident) -> dict[str, Any]:
    return {
        "incident_id": incident.incident_id,
        "request_id": incident.request_id,
        "recovery_root_request_id": incident.root_id or incident.request_id,
        "attempt": incident.attempt,
        "max_attempts": incident.max_attempts,
        "recovery_kind": incident.kind,
    }


def recovery_pause_ms(incident: Incident, roll: float, passed_ms: float = 0) -> float:
    if incident.losses <= 1:
        return 0.0
    pause_ms = jittered_ms(backoff_ms(incident.losses - 1, FIRST_PAUSE_MS, PAUSE_MAX_MS), roll)
    # What has passed since the last attempt began is part of it: an agent whose host dies again and again is woken ever later, too.
    return max(0.0, pause_ms - passed_ms)


def earns_credit(chunk_type: object, at_ms: float, credited_at_ms: float | None) -> bool:
    """Whether this chunk counts. `credited_at_ms` is when content last did, in this life."""
    if chunk_type in _MILESTONES:
        return True
    return chunk_type in _CONTENT and (credited_at_ms is None or at_ms - credited_at_ms >= CONTENT_WINDOW_MS)
