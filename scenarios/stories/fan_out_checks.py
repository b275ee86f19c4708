"""The checks of a fan-out: a comparison with a plain loop, and an account of every completion."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from perdure.actors import RunResult
from perdure.scenarios.cast.census import Totals, count_plainly, files_for
from perdure.scenarios.stories.fan_out_record import Order, Progress

MAIL: Final = ("enqueued", "delivered", "superseded", "suppressed", "parked", "pending")


@dataclass
class Harvest:
    """What is known at the end. `end` is the report of the census, or the result of the awaited one."""

    seconds: float
    audit: dict[str, Any]
    end: dict[str, Any] | RunResult
    statuses: Counter[str]
    left_out: Counter[str]

    def sums(self) -> tuple[Totals, int, int]:
        """The totals, the number of completions, and the number of different ones."""
        if isinstance(self.end, dict):
            return Totals(**self.end["totals"]), self.end["deliveries"], self.end["distinct"]
        totals: Totals = self.end.output_or(Totals())
        return totals, totals.files, min(totals.files, self.statuses.total())


def account(order: Order, progress: Progress, harvest: Harvest) -> dict[str, int]:
    """The account of mail since the fan-out began, with doubled and lost completions."""
    assert progress.before is not None
    _, delivered, distinct = harvest.sums()
    since = {key: harvest.audit[key] - progress.before[key] for key in MAIL}
    return since | {"duplicated": delivered - distinct, "lost": order.children - distinct}


def wrong_of(order: Order, progress: Progress, harvest: Harvest) -> Iterator[str]:
    """The problems, in sentences."""
    mail, audit, statuses = account(order, progress, harvest), harvest.audit, harvest.statuses
    totals, plain = harvest.sums()[0].model_dump(), count_plainly(files_for(order.children)).model_dump()
    for name, want in plain.items():
        if totals[name] != want:
            yield f"{name}: the agents counted {totals[name]}, a plain loop {want}"
    if not audit["balanced"]:
        yield f"the audit does not balance: {', '.join(f'{key} {audit[key]}' for key in MAIL)}"
    if mail["duplicated"]:
        yield f"{mail['duplicated']} completions were delivered twice"
    if mail["lost"]:
        yield f"{mail['lost']} completions were lost"
    if statuses["completed"] != order.children:
        yield f"{statuses['completed']} of {order.children} runs completed"
    if not isinstance(harvest.end, dict) and not harvest.end.ok:
        yield f"the census ended {harvest.end.status}: {harvest.end.error}"
    if statuses.total() != order.children:
        yield f"{statuses.total()} runs are known, {order.children} were asked for"
