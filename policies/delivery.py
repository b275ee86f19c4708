"""What is decided about the delivery of an answer: when it begins, what is shown in the end, and what follows a post that went wrong.

Three tables.

How a turn ended, and what had been seen of it, gives the outcome and the words (`ending`):

    turn                       text    outcome      shown
    completed                  yes     answered     the whole answer
    completed                  no      empty        `empty_text`
    cancelled, by anybody      yes     cancelled    what was said, and `cancelled_text`
    cancelled, by anybody      no      cancelled    nothing, or `cancelled_text` where something stands already
    broke off for good         yes     apologised   what was said, and `interrupted_text`
    broke off for good         no      failed       `error_text`, which never has anything of the inside in it
    never began, or was lost   any     failed       `error_text`

A request to the provider that went wrong (`after_failure`):

    it asks to be left alone   wait so long, then again           not counted, but for a total
    it was not reached         wait, growing, then again          parked after `tries_max`
    edit: outcome unknown      the same edit again: an edit twice is an edit once
    edit: nothing to change    done
    edit: the message is gone  post it anew
    post: outcome unknown      the policy for unknown outcomes, below
    refused for good           parked: visible, and retried when a person says so

A post that was sent and of which no reply was seen, or whose poster died before it could write the reply down (`after_unknown`): if a
message id is known, edit that one. If none is, `edit-or-apologise` posts again with `repeated_text` above it, for the reader may see it
twice; `repeat` says nothing; `leave` parks it, and a person decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, NamedTuple

from perdure.policies.retry import backoff_ms, jittered_ms
from perdure.policies.turn_status import TurnStatus

APOLOGY: Final = (
    "Sorry, my reply was interrupted. Please send your message again if you'd like me to retry."  # the seed's own words
)


class Trouble(StrEnum):
    """What went wrong with a request to a provider."""

    BUSY = "busy"
    UNREACHED = "unreached"
    UNKNOWN = "unknown"
    UNCHANGED = "unchanged"
    GONE = "gone"
    REFUSED = "refused"


class Next(StrEnum):
    """What is done after it."""

    DONE = "done"
    AGAIN = "again"
    ANEW = "anew"
    REPEAT = "repeat"
    PARK = "park"


class Outcome(StrEnum):
    """What came of a message that somebody sent to the agent."""

    ANSWERED = "answered"
    EMPTY = "empty"
    APOLOGISED = "apologised"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """How answers are delivered. Durations are milliseconds.

    Attributes:
        unknown: what is done about a post that was sent and of which no reply was seen.
        burst_ms: how long a first message waits for more that belong to it; `burst_max_ms` bounds that, however many come.
        edit_every_ms: the least time between two edits of an answer that streams; None takes what the provider allows.
        tries_max: failed requests of one delivery in a row until it is parked; `busy_max` the same for those that asked to wait.
        kept_max: how many settled deliveries of one conversation are remembered, and with them which messages it has had.
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


class Ending(NamedTuple):
    """The outcome of a reply, and what is shown at last: what the model said, or not, and words of ours."""

    outcome: Outcome
    keeps_text: bool
    words: str = ""

    def shown(self, said: str) -> str:
        """The last state of the answer."""
        return "\n\n".join(
            each for each in (said.rstrip() if self.keeps_text and self.words else said, self.words) if each
        )


def ending(status: TurnStatus, policy: Delivery, *, has_text: bool, has_posts: bool) -> Ending:
    """What a reply comes to, by the status of its turn; see the first table."""
    if status == TurnStatus.COMPLETED:
        return Ending(Outcome.ANSWERED, True) if has_text else Ending(Outcome.EMPTY, False, policy.empty_text)
    if status == TurnStatus.ABORTED:
        return Ending(Outcome.CANCELLED, True, policy.cancelled_text if has_text or has_posts else "")
    if status in (TurnStatus.ERROR, TurnStatus.INTERRUPTED) and has_text:
        return Ending(Outcome.APOLOGISED, True, policy.interrupted_text)
    return Ending(Outcome.FAILED, False, policy.error_text)


def after_failure(trouble: Trouble, policy: Delivery, *, is_edit: bool, tries: int, busy: int) -> Next:
    """What follows a request that went wrong; see the second table. `tries` and `busy` count this one too."""
    if trouble is Trouble.UNCHANGED:
        return Next.DONE
    if trouble is Trouble.REFUSED or tries > policy.tries_max or busy > policy.busy_max:
        return Next.PARK
    if trouble is Trouble.GONE:
        return Next.ANEW
    if trouble is Trouble.UNKNOWN and not is_edit:
        return after_unknown(policy)
    return Next.AGAIN


def after_unknown(policy: Delivery) -> Next:
    """What follows a post of which nobody knows whether it arrived, and no message id is known."""
    return Next.PARK if policy.unknown == "leave" else Next.REPEAT


def pause_ms(policy: Delivery, tries: int, retry_after_ms: float | None, roll: float) -> float:
    """How long to wait before the next request: what the provider asked for, else growing and jittered."""
    if retry_after_ms is not None:
        return max(0.0, retry_after_ms)
    return jittered_ms(backoff_ms(tries, policy.first_pause_ms, policy.pause_max_ms), roll)


def ready_at_ms(policy: Delivery, opened_at_ms: int, now_ms: int) -> int:
    """When a burst that has got one more message now may be answered."""
    return min(now_ms + policy.burst_ms, opened_at_ms + max(policy.burst_ms, policy.burst_max_ms))
