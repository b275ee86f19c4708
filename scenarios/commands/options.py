"""The options that several commands share."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from perdure import BadRequest
from perdure.actors import data_directory
from perdure.ledger import Status, lasting, name_of, type_of

HERE: Final = Path("perdure-data")
AGE_MAX_MS: Final = 36_500 * 86_400_000
UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class WorldName(StrEnum):
    RAY = "ray"
    SIM = "sim"


World = Annotated[WorldName, typer.Option(help="Real processes under Ray, or the simulated world.")]


def directory(given: str | Path) -> Path:
    try:
        return data_directory(given)
    except BadRequest as refusal:
        raise typer.BadParameter(refusal.problem) from None


def check_there(data: Path) -> None:
    if not data.exists():
        raise BadRequest("data", f"there is no directory {data}")


def check_address(field: str, agent: str) -> None:
    if not name_of(agent) or ":" not in type_of(agent):
        raise BadRequest(field, f"{agent!r:.200} is no address of an agent; one is name@module:Class")


Data = Annotated[
    Path, typer.Option(help="The data directory, or the URL of a bucket.", parser=directory, metavar="DIR")
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Take a bucket even from another Ray that serves it now, and then ends.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON at the end, an object or an array, and nothing else.")]
RunId = Annotated[str, typer.Argument(help="The id of a run; `perdure ps` shows the live ones.")]


def duration_ms(words: str, option: str, most_ms: int = AGE_MAX_MS) -> int:
    """`90m` in milliseconds. Raises `BadRequest`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", words.strip())
    if found is None:
        raise BadRequest(option, f"{words!r} is not a duration like 30s, 90m, 12h or 7d")
    ms = float(found[1]) * UNITS_MS[found[2]]
    if ms > most_ms:
        raise BadRequest(option, f"{words!r} is longer than {lasting(most_ms)}, the longest that can be asked for")
    return int(ms)


# ---------------------------------------------------------------- which runs


def _filter(
    status: Annotated[list[Status] | None, typer.Option(help="Only runs with this status; repeatable.")] = None,
    type: Annotated[str | None, typer.Option(help="Only runs of this agent type, as module:Class.")] = None,
    parent: Annotated[
        str | None, typer.Option(help="Only runs that this agent requested, as name@module:Class.")
    ] = None,
    prefix: Annotated[str | None, typer.Option(help="Only runs whose ids begin with this.")] = None,
    match: Annotated[
        str | None, typer.Option(help="Only runs with this in their id, type or parent, whatever the case.")
    ] = None,
    error: Annotated[
        str | None, typer.Option(help="Only runs with this in their error, or in why they were given up or parked.")
    ] = None,
    parked: Annotated[bool, typer.Option("--parked", help="Only runs that are parked.")] = False,
    undoing: Annotated[bool, typer.Option("--undoing", help="Only runs that undo their steps.")] = False,
    older_than: Annotated[
        str | None, typer.Option(help="Only runs requested at least so long ago, such as 90m or 7d.")
    ] = None,
    newer_than: Annotated[str | None, typer.Option(help="Only runs requested at most so long ago.")] = None,
    ended_older_than: Annotated[str | None, typer.Option(help="Only runs that ended at least so long ago.")] = None,
    ended_newer_than: Annotated[str | None, typer.Option(help="Only runs that ended at most so long ago.")] = None,
) -> dict[str, Any]:
    if parent is not None:
        check_address("parent", parent)
    # As a dict, because `RunFilter` brings much with it: it is loaded by the commands that need it.
    given: dict[str, Any] = {
        "status": [str(each) for each in status] if status else None,
        "type": type,
        "parent": parent,
        "prefix": prefix,
        "words": match,
        "error": error,
        "parked": parked or None,
        "undoing": undoing or None,
        **_instants("", older_than, newer_than),
        **_instants("ended-", ended_older_than, ended_newer_than),
    }
    return {name: value for name, value in given.items() if value is not None}


def _instants(which: str, older_than: str | None, newer_than: str | None) -> dict[str, int | None]:
    least_ms = None if older_than is None else duration_ms(older_than, f"{which}older-than")
    most_ms = None if newer_than is None else duration_ms(newer_than, f"{which}newer-than")
    if least_ms is not None and most_ms is not None and most_ms <= least_ms:
        words = f"nothing is at least {older_than} old and at most {newer_than}; leave one of the two out"
        raise BadRequest(f"{which}newer-than", words)
    now_ms, name = time.time_ns() // 1_000_000, "ended" if which else "requested"
    return {
        f"{name}_before": None if least_ms is None else max(0, now_ms - least_ms + 1),
        f"{name}_since": None if most_ms is None else max(0, now_ms - most_ms),
    }


def choosing(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options that choose runs, instead of its argument `which`."""
    options = inspect.signature(_filter, eval_str=True).parameters
    own = inspect.signature(command, eval_str=True).parameters

    def chosen(**given: Any) -> None:
        which = _filter(**{name: given.pop(name) for name in options})
        command(**given, which=which)

    places = [each for name, each in own.items() if name != "which"]
    at = [name for name in own if name != "which"].index("data")
    parameters = [*places[:at], *options.values(), *places[at:]]
    chosen.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    chosen.__annotations__ = {each.name: each.annotation for each in parameters}
    chosen.__name__, chosen.__doc__ = command.__name__, command.__doc__
    return chosen
