"""`DIR/scenario.json`, from which another command can resume a fan-out: its order and progress. The runs are in the ledger."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field

from perdure.ledger import BadRequest, keep_whole
from perdure.scenarios.stories.directory_lock import unwritable

RECORD: Final = "scenario.json"


class Order(BaseModel):
    """The options of a fan-out.

    `number` tells the fan-outs of a directory apart. Each child rests a little longer over its file than the one before, up to `pace_s`,
    so the ends are spread.
    """

    children: int
    kills: int = 0
    seed: int = 0
    awaited: bool = False
    cold_restart: bool = False
    pace_s: float = 0.0
    number: int = 1


class Progress(BaseModel):
    """The progress that outlives the command. `before` is the account of mail at the begin."""

    before: dict[str, int] | None = None
    struck: list[str] = []
    recovery_ms: list[float] = []
    seconds: float = 0.0


class Logbook(BaseModel):
    """The order and its progress, kept in a directory (or nowhere, for the simulated world)."""

    order: Order
    progress: Progress = Field(default_factory=Progress)
    finished: bool = False
    path: Path | None = Field(default=None, exclude=True)

    def save(self) -> None:
        """Write it durably."""
        if self.path is None:
            return
        try:
            keep_whole(self.path, self.model_dump_json(indent=1).encode())
        except OSError as problem:
            raise unwritable(self.path.parent, problem) from problem


def read(data: Path) -> Logbook | None:
    """The last fan-out of this directory. Raises `BadRequest` if its record cannot be read."""
    path = data / RECORD
    try:
        return Logbook.model_validate_json(path.read_bytes()).model_copy(update={"path": path})
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as problem:
        raise BadRequest(
            "data", f"{path} cannot be read ({problem}); delete it to begin anew, the ledger is not touched"
        ) from problem


def begin(data: Path, order: Order, known: Logbook | None) -> Logbook:
    """A new fan-out in this directory, under the next number."""
    order.number = known.order.number + 1 if known is not None else 1
    book = Logbook(order=order, path=data / RECORD)
    book.save()
    return book
