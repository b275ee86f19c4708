"""What a data directory remembers of the fan-out that plays on it, in `DIR/scenario.json`: enough for another command to carry on.

The runs themselves are in the ledger; this is the order, and how far it came.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from perdure.ledger import BadRequest
from perdure.scenarios.stories.directory_lock import unwritable

RECORD: Final = "scenario.json"


@dataclass(kw_only=True)
class Order:
    """A fan-out as it was ordered.

    `number` tells those of one directory apart, and names the parent agent. Children rest over their files, each a little
    longer than the one before, up to `pace_s` seconds: so the ends are spread, and there is something left to kill.
    """

    children: int
    kills: int = 0
    seed: int = 0
    awaited: bool = False
    cold_restart: bool = False
    pace_s: float = 0.0
    number: int = 1


@dataclass
class Progress:
    """What must outlive the command: the account of mail before it began, and what was killed so far."""

    before: dict[str, int] | None = None
    struck: list[str] = field(default_factory=list)
    recovery_ms: list[float] = field(default_factory=list)
    seconds: float = 0.0


@dataclass
class Logbook:
    """The order and its progress, kept in a directory (or nowhere, for the simulated world)."""

    order: Order
    progress: Progress = field(default_factory=Progress)
    finished: bool = False
    path: Path | None = None

    def save(self) -> None:
        """Write it down, whole or not at all."""
        if self.path is None:
            return
        body = {"order": asdict(self.order), "progress": asdict(self.progress), "finished": self.finished}
        draft = self.path.with_suffix(".json.new")
        try:
            draft.write_text(json.dumps(body, indent=1), encoding="utf-8")
            draft.replace(self.path)
        except OSError as problem:
            raise unwritable(self.path.parent, problem) from problem


def read(data: Path) -> Logbook | None:
    """The last fan-out of this directory. Raises `BadRequest` if its record cannot be read."""
    path = data / RECORD
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return Logbook(Order(**told["order"]), Progress(**told["progress"]), told["finished"], path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise BadRequest(
            "data", f"{path} cannot be read ({problem}); delete it to begin anew, the ledger is not touched"
        ) from problem


def begin(data: Path, order: Order, known: Logbook | None) -> Logbook:
    """A new fan-out in this directory, under the next number."""
    order.number = known.order.number + 1 if known is not None else 1
    book = Logbook(order, path=data / RECORD)
    book.save()
    return book
