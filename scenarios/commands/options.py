"""The options that several commands share."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from perdure.actors import data_directory
from perdure.ledger import BadRequest, lasting

HERE: Final = Path("perdure-data")
AGE_MAX_MS: Final = 36_500 * 86_400_000
UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class WorldName(StrEnum):
    """Where a scenario plays."""

    RAY = "ray"
    SIM = "sim"


World = Annotated[WorldName, typer.Option(help="Real processes under Ray, or the simulated world.")]


def directory(given: str | Path) -> Path:
    try:
        return data_directory(given)
    except BadRequest as refusal:
        raise typer.BadParameter(refusal.problem) from None


Data = Annotated[
    Path, typer.Option(help="The data directory, or the URL of a bucket.", parser=directory, metavar="DIR")
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Take a bucket even from another Ray that serves it now, and then ends.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object at the end, and nothing else.")]


def duration_ms(words: str, option: str, most_ms: int = AGE_MAX_MS) -> int:
    """`90m` in milliseconds. Raises `BadRequest`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", words.strip())
    if found is None:
        raise BadRequest(option, f"{words!r} is not a duration like 30s, 90m, 12h or 7d")
    ms = float(found[1]) * UNITS_MS[found[2]]
    if ms > most_ms:
        raise BadRequest(option, f"{words!r} is longer than {lasting(most_ms)}, the longest that can be asked for")
    return int(ms)
