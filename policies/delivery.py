"""How an answer is delivered: when it begins, what is shown at the end, and what follows a failed request.

`ending` gives the outcome and the words, by the end of the turn:

    turn                       text    outcome      shown
    completed                  yes     answered     the whole answer
    completed                  no      empty        `empty_text`
    cancelled                  yes     cancelled    the text so far, and `cancelled_text`
    cancelled                  no      cancelled    nothing, or `cancelled_text` if something was posted
    ended with an error        yes     apologised   the text so far, and `interrupted_text`
    ended with an error        no      failed       `error_text`, which shows nothing internal
    never began, or was lost   any     failed       `error_text`

`after_failure` says what follows a failed request to the provider:

    it asks us to wait         wait as asked, and repeat            parked after `busy_max`
    it was not reached         wait, longer each time, and repeat   parked after `tries_max`
    edit: outcome unknown      repeat the edit, which is idempotent
    edit: nothing to change    done
    edit: the message is gone  post it again
    post: outcome unknown      see `after_unknown`
    refused for good           parked, until a person retries it

`after_unknown` is about a post whose reply was not seen or not recorded. If its message id is known, that message is edited. Otherwise
`edit-or-apologise` posts again with `repeated_text` above, because the reader may see it twice; `repeat` posts again without a word;
`leave` parks it, and a person decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from perdure.policies.retry import backoff_ms, jittered_ms
from perdure.policies.turn_status import TurnStatus

APOLOGY: Final = "Sorry, my reply was interrupted. Please send your message again if you'd like me to retry."


class DeliveryTrouble(StrEnum):
    BUSY = "busy"
    UNREACHED = "unreached"
    UNKNOWN = "unknown"
    UNCHANGED = "unchanged"
    GONE = "gone"
    REFUSED = "refused"


class Next(StrEnum):
    DONE = "done"
    AGAIN = "again"
    ANEW = "anew"
    PARK = "park"


class DeliveryOutcome(StrEnum):
    ANSWERED = "answered"
    EMPTY = "empty"
    APOLOGISED = "apologised"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How answers are delivered. Durations are milliseconds.

    Attributes:
        unknown: what follows a post whose outcome is unknown.
        burst_ms: how long a message waits for more of its burst; `burst_max_ms` bounds the whole wait.
        edit_every_ms: the least time between two edits of a streamed answer; None takes the provider's limit.
        tries_max: failed requests in a row until a delivery is parked; `busy_max` counts those that asked us to wait.
        kept_max: how many settled deliveries of a conversation are kept. Messages that they answered are recognised.
    """

    unknown: Literal["edit-or-apologise", "repeat", "leave"] = "edit-or-apologise"
    burst_ms: int = 0
    burst_max_ms: int = 5_000
    edit_every_ms: int | None = None
    tries_max: int = 8
    busy_max: int = 50
    first_pause_ms: int = 500
    pause_max_ms: int = 60_000
    kept_max: int = 1_000
    recovering_text: str = "(interrupted, and recovering …)"
    empty_text: str = "I couldn't produce a text response. Please try again."
    error_text: str = "Sorry, something went wrong, and I could not answer. Please try again."
    interrupted_text: str = APOLOGY
    cancelled_text: str = "(cancelled)"
    repeated_text: str = "(Sorry if you see this twice: I could not tell whether it had arrived.)"


# The outcome of a reply, and what is shown at the end: the model's text or not, and words of ours.
class ReplyEnding(NamedTuple):
    outcome: DeliveryOutcome
    keeps_text: bool
    words: str = ""

    def shown(self, said: str) -> str:
        return "\n\n".join(
            each for each in (said.rstrip() if self.keeps_text and self.words else said, self.words) if each
        )


def ending(status: TurnStatus, policy: Delivery, *, has_text: bool, has_posts: bool) -> ReplyEnding:
    """The end of a reply, by the status of its turn; see the first table."""
    if status == TurnStatus.COMPLETED:
        return (
            ReplyEnding(DeliveryOutcome.ANSWERED, True)
            if has_text
            else ReplyEnding(DeliveryOutcome.EMPTY, False, policy.empty_text)
        )
    if status == TurnStatus.ABORTED:
        return ReplyEnding(DeliveryOutcome.CANCELLED, True, policy.cancelled_text if has_text or has_posts else "")
    if status in (TurnStatus.ERROR, TurnStatus.INTERRUPTED) and has_text:
        return ReplyEnding(DeliveryOutcome.APOLOGISED, True, policy.interrupted_text)
    return ReplyEnding(DeliveryOutcome.FAILED, False, policy.error_text)


def after_failure(trouble: DeliveryTrouble, policy: Delivery, *, is_edit: bool, tries: int, busy: int) -> Next:
    """What follows a failed request; see the second table. `tries` and `busy` include this one."""
    if trouble is DeliveryTrouble.UNCHANGED:
        return Next.DONE
    if trouble is DeliveryTrouble.REFUSED or tries > policy.tries_max or busy > policy.busy_max:
        return Next.PARK
    if trouble is DeliveryTrouble.GONE:
        return Next.ANEW
    if trouble is DeliveryTrouble.UNKNOWN and not is_edit:
        return after_unknown(policy)
    return Next.AGAIN


def after_unknown(policy: Delivery) -> Next:
    return Next.PARK if policy.unknown == "leave" else Next.AGAIN


def pause_ms(policy: Delivery, tries: int, retry_after_ms: float | None, roll: float) -> float:
    if retry_after_ms is not None:
        return max(0.0, retry_after_ms)
    return jittered_ms(backoff_ms(tries, policy.first_pause_ms, policy.pause_max_ms), roll)


def ready_at_ms(policy: Delivery, opened_at_ms: int, now_ms: int) -> int:
    return min(now_ms + policy.burst_ms, opened_at_ms + max(policy.burst_ms, policy.burst_max_ms))
