"""How long to wait before the next try. The caller keeps the count, the clock and the dice."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime

HINT_PARSED_MAX_MS = 2**31 - 1


def backoff_ms(attempt: int, first_ms: float, most_ms: float) -> int:
    """The pause after `attempt` failures (1, 2, …). It doubles each time, up to `most_ms`."""
    # Beyond 2^30 every bound is reached, and a larger power would overflow the float.
    return int(min(most_ms, first_ms * 2 ** min(max(attempt, 1) - 1, 30)))


def jittered_ms(pause_ms: float, roll: float) -> float:
    """Half of the pause to all of it, by `roll` in [0, 1), so that many callers do not return at once."""
    return pause_ms / 2 + pause_ms / 2 * roll


def hinted_ms(headers: Mapping[str, str]) -> float | None:
    """How long a server asks us to wait: `retry-after-ms`, or `retry-after` in seconds or as an HTTP date.

    A date counts from that of the answer, so no clock of ours; a past one is 0. An unreadable hint is ignored, and a longer one is cut to
    2^31-1 ms.
    """
    lower = {name.lower(): value for name, value in headers.items()}
    exact = _number(lower.get("retry-after-ms", ""))
    if exact is not None:
        return min(exact, HINT_PARSED_MAX_MS)
    said = lower.get("retry-after", "")
    seconds = _number(said)
    if seconds is not None:
        return min(seconds * 1000, HINT_PARSED_MAX_MS)
    until, now_ms = _date_ms(said), _date_ms(lower.get("date", ""))
    return None if until is None or now_ms is None else min(max(0.0, until - now_ms), HINT_PARSED_MAX_MS)


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _date_ms(text: str) -> float | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() * 1000
