"""Words for durations, counts, and what pydantic says; and words of others for a terminal."""

from __future__ import annotations

import math
import re

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
_UNITS = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (_SECOND, "s"))
_OBEYED = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]|\r(?!\n)")


def harmless(text: str) -> str:
    """A text without what a terminal would obey, or what turns the order of its letters; its lines stay lines."""
    return _OBEYED.sub("�", text)


def lasting(ms: float) -> str:
    """A duration in words: `400 ms`, `12.5 s`, `2 h 10 min`, `without end`."""
    if ms == math.inf:
        return "without end"
    if ms < _SECOND:
        return f"{ms:.0f} ms"
    if ms < 2 * _MINUTE:
        return f"{ms / _SECOND:.1f}".removesuffix(".0") + " s"
    words, rest = [], int(ms)
    for size, name in _UNITS:
        if rest >= size:
            words.append(f"{rest // size} {name}")
            rest %= size
    return " ".join(words[:2])


def first(words: str) -> str:
    return words[:1].upper() + words[1:]


def nth(number: int) -> str:
    last = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 // 10 != 1 else "th"
    return f"{number}{last}"


def of_json(words: str) -> str:
    """What pydantic says of a value that came as JSON: of its types the sender knows those of JSON alone."""
    return re.sub(r"(?:an? )?(?:valid )?dictionary or (?:an )?instance of \w+", "an object", words)


def counted(number: int, one: str) -> str:
    return f"{number} {one if number == 1 else one + 's'}"
