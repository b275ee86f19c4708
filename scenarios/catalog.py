"""What can be shown: every scenario of `perdure run`, with one sentence about it."""

from __future__ import annotations

from typing import Final, NamedTuple


class Scenario(NamedTuple):
    """One scenario and how it is begun."""

    name: str
    sentence: str
    example: str


CATALOG: Final = (
    Scenario(
        "fan-out",
        "One child agent for each file of the Python standard library; hosts, parent and supervisor are killed meanwhile.",
        "perdure run fan-out --children 200 --kills 5 --seed 7",
    ),
)
