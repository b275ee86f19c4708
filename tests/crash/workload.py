"""What is recorded, and how the directory that it leaves is judged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

Say = Callable[[str], None]


class Workload(NamedTuple):
    """Processes that live one after the other below a directory, and tell what they begin and what was acknowledged to them.

    `judge` is given the directory and all that was told, and says what is wrong: a word (`lost`, `refused`, `unreadable`, …), a
    colon, and what was seen. Nothing, if all is well.
    """

    name: str
    lives: tuple[Callable[[Path, Say], None], ...]
    judge: Callable[[Path, list[str]], str]
    faults: bool = True  # whether its changes come in an order, so that the n-th one can be made to fail


def latest(said: list[str], word: str, column: int = 1) -> int:
    """The number that was last told with this word, or 0."""
    return next((int(line.split()[column]) for line in reversed(said) if line.split()[0] == word), 0)
