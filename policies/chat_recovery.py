"""What becomes of a chat turn that was cut off: which kind of recovery it needs, and whether there is patience left for one.

A turn is one durable row, and its *incident* is part of it: opened when the turn is first found cut off, evaluated again at each further
time, and gone when the turn completes. Spec chat-recovery §1.5, §4.3 and §4.5, with these corrections of what was found wanting there:

- Progress and work are counted per turn, so that one turn neither pays for another nor reopens it (W-26).
- A sealed incident is final: `exhausted`, `failed` and `skipped` are never evaluated again (W-25).
- The debounce window stands still: it begins with an attempt and does not move with each look, so that a loop that is faster than the
  window uses up attempts all the same; and from the second loss in a row on there is a pause, doubled and jittered (W-27).
- A turn that waits for a person is *parked*: it has all the time there is, or `parked_deadline_ms` of it. Only the turn's own parts can
  park it, so that a question forgotten elsewhere excuses nobody (W-28).

The bounds, and what resets each (the order is that of the reason when several are crossed):

| reason | crossed when | reset by |
|---|---|---|
| `out_of_memory` | deaths of memory > `max_oom_retries` | nothing |
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
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from typing import Any, NamedTuple

from perdure.policies.chat_config import ChatRecovery, ExhaustedContext, ProgressContext
from perdure.policies.json_types import JsonObject
from perdure.policies.retry import backoff_ms, jittered_ms
from perdure.policies.ui_messages import Part

DEBOUNCE_MS = 30_000
FIRST_PAUSE_MS = 1_000
PAUSE_MAX_MS = 30_000


class RecoveryKind(StrEnum):
    """What a turn that was cut off needs."""

    RETRY = "retry"
    CONTINUE = "continue"
    SUPERSEDED = "superseded"
    PARK = "park"


def classify_turn(
    *,
    has_content: bool,
    is_continuation: bool,
    is_newest_user_its_own: bool,
    is_awaiting_client: bool,
) -> RecoveryKind:
    """What a turn that was cut off needs, from what is durably there (§4.3).

    | | newest user message is the turn's | waits for a person | content | continuation | kind |
    |---|---|---|---|---|---|
    | 1 | no | – | – | – | `superseded`: people have gone on (W-08) |
    | 2 | yes | yes | – | – | `park` |
    | 3 | yes | no | yes | – | `continue` after what is there |
    | 4 | yes | no | no | yes | `continue` the message that it was to continue |
    | 5 | yes | no | no | no | `retry`: whether a stream row exists says nothing (W-01, W-02) |

    `is_newest_user_its_own` holds too when the turn answers no user message and there is still none.
    """
    if not is_newest_user_its_own:
        return RecoveryKind.SUPERSEDED
    if is_awaiting_client:
        return RecoveryKind.PARK
    return RecoveryKind.CONTINUE if has_content or is_continuation else RecoveryKind.RETRY


def keeps_partial(*, persist: bool | None, has_settled_tools: bool) -> bool:
    """Whether what was streamed before the cut stays. Settled work of tools stays whatever a hook says (#1631)."""
    return has_settled_tools or persist is not False


class IncidentStatus(StrEnum):
    """Where an incident stands. The last three are final."""

    ATTEMPTING = "attempting"
    SCHEDULED = "scheduled"
    PARKED = "parked"
    SKIPPED = "skipped"
    FAILED = "failed"
    EXHAUSTED = "exhausted"


SEALED = frozenset({IncidentStatus.SKIPPED, IncidentStatus.FAILED, IncidentStatus.EXHAUSTED})


@dataclass(frozen=True)
class Incident:
    """The recovery of one turn so far. Instants in ms; `losses` counts interruptions in a row without progress."""

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

    @property
    def is_sealed(self) -> bool:
        """Whether nothing more happens to it."""
        return self.status in SEALED

    @property
    def work(self) -> int:
        """Progress since it opened. Never falls."""
        return self.progress - self.work_baseline

    def as_row(self) -> JsonObject:
        """The incident as plain data, to be stored with its turn."""
        return {name: str(value) if isinstance(value, StrEnum) else value for name, value in asdict(self).items()}

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Incident:
        """The incident that was stored. Fields that this version does not know are left out; those it lacks have their defaults."""
        known = {each.name: row[each.name] for each in fields(cls) if each.name in row}
        status = IncidentStatus(known.get("status", IncidentStatus.ATTEMPTING))
        return cls(**{**known, "kind": RecoveryKind(known["kind"]), "status": status})

    def moved(self, status: IncidentStatus, reason: str = "") -> Incident:
        """In another status; itself if it is sealed."""
        return self if self.is_sealed else replace(self, status=status, reason=reason)


def incident_id(root_id: str, user_message_id: str | None) -> str:
    """Which incident it is: the first request of the chain, and the message that it answers. The kind is no part of it."""
    return f"{root_id}:{user_message_id or ''}"


class TurnInterruption(NamedTuple):
    """What is known when a turn is found cut off. `progress` is the turn's own counter.

    Until `waited_until_ms` another turn of the agent was played: that silence was not this one's.
    """

    request_id: str
    root_id: str
    user_message_id: str | None
    kind: RecoveryKind
    progress: int
    is_awaiting_client: bool = False
    is_out_of_memory: bool = False
    waited_until_ms: float = 0


class Evaluation(NamedTuple):
    """The incident to store, and what it means. When `asks_predicate`, the answer False is to be put in by `declined`."""

    incident: Incident
    is_exhausted: bool
    is_new: bool = False
    asks_predicate: bool = False

    def declined(self) -> Evaluation:
        """After `should_keep_recovering` has said False."""
        return Evaluation(self.incident.moved(IncidentStatus.EXHAUSTED, "recovery_aborted"), is_exhausted=True)


def evaluate(incident: Incident | None, cut: TurnInterruption, config: ChatRecovery, now_ms: float) -> Evaluation:
    """Open the incident of a turn, or look at it again, and say whether there is patience left. Pure; a sealed one stays as it is."""
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
        incident_id=incident_id(cut.root_id, cut.user_message_id),
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
    )


def _seen_again(known: Incident, cut: TurnInterruption, config: ChatRecovery, now_ms: float) -> Incident:
    has_progressed = cut.progress > known.progress
    was_answered = known.parked_at_ms is not None and not cut.is_awaiting_client
    is_debounced = not has_progressed and now_ms - known.window_at_ms < DEBOUNCE_MS
    counts = not (is_debounced or cut.is_awaiting_client)
    parked_at_ms = now_ms if known.parked_at_ms is None else known.parked_at_ms
    return replace(
        known,
        request_id=cut.request_id,
        kind=cut.kind,
        status=IncidentStatus.ATTEMPTING,
        reason="",
        attempt=1 if has_progressed else known.attempt + int(counts),
        losses=1 if has_progressed else known.losses + int(not cut.is_awaiting_client),
        max_attempts=config.max_attempts,
        last_attempt_at_ms=now_ms,
        last_progress_at_ms=now_ms
        if has_progressed or was_answered or cut.is_awaiting_client
        else max(known.last_progress_at_ms, min(cut.waited_until_ms, now_ms)),
        window_at_ms=now_ms if has_progressed or counts else known.window_at_ms,
        progress=max(known.progress, cut.progress),
        oom_attempts=known.oom_attempts + int(cut.is_out_of_memory),
        parked_at_ms=parked_at_ms if cut.is_awaiting_client else None,
    )


def _crossed(seen: Incident, config: ChatRecovery, now_ms: float, *, is_new: bool) -> str:
    """The first bound that is crossed, or nothing."""
    if seen.parked_at_ms is not None:
        return "awaiting_client_deadline" if now_ms - seen.parked_at_ms > config.parked_deadline_ms else ""
    if seen.oom_attempts > config.max_oom_retries:
        return "out_of_memory"
    if is_new:
        return ""
    if math.isfinite(config.max_recovery_work) and seen.work > config.max_recovery_work:
        return "work_budget_exceeded"
    if now_ms - seen.last_progress_at_ms > config.no_progress_timeout_ms:
        return "no_progress_timeout"
    return "max_attempts_exceeded" if seen.attempt > config.max_attempts else ""


def progress_context(incident: Incident, now_ms: float) -> ProgressContext:
    """What `should_keep_recovering` is asked about."""
    return ProgressContext(
        incident_id=incident.incident_id,
        request_id=incident.request_id,
        recovery_root_request_id=incident.root_id or incident.request_id,
        attempt=incident.attempt,
        max_attempts=incident.max_attempts,
        recovery_kind=incident.kind,
        work=incident.work,
        age_ms=now_ms - incident.first_seen_at_ms,
    )


def exhausted_context(
    incident: Incident, config: ChatRecovery, *, stream_id: str, created_at_ms: float, parts: list[Part]
) -> ExhaustedContext:
    """What `on_exhausted` is told. `parts` is what of the answer exists."""
    return ExhaustedContext(
        incident_id=incident.incident_id,
        request_id=incident.request_id,
        recovery_root_request_id=incident.root_id or incident.request_id,
        attempt=incident.attempt,
        max_attempts=incident.max_attempts,
        recovery_kind=incident.kind,
        stream_id=stream_id,
        created_at_ms=created_at_ms,
        reason=incident.reason or "max_attempts_exceeded",
        terminal_message=config.terminal_message,
        partial_text="".join(part["text"] for part in parts if part.get("type") == "text"),
        partial_parts=parts,
    )


def recovery_pause_ms(incident: Incident, roll: float) -> float:
    """How long until the recovery begins: at once after the first loss, then doubled up to half a minute, jittered."""
    if incident.losses <= 1:
        return 0.0
    return jittered_ms(backoff_ms(incident.losses - 1, FIRST_PAUSE_MS, PAUSE_MAX_MS), roll)
