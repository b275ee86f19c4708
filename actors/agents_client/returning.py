"""What tabs had not been told when their lines were lost. A tab that comes back to the same gateway names itself by the same `_pk`."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

REMEMBERED_MAX: Final = 10_000


class Returning:
    """The lost lines of one gateway; the oldest are forgotten first."""

    def __init__(self) -> None:
        self._lost: OrderedDict[tuple[str, str], str] = OrderedDict()

    def left(self, agent: str, tab: str, untold: str) -> None:
        """A line of a tab is lost, in the middle of a turn or of none."""
        if tab:
            self._lost[agent, tab] = untold
        if len(self._lost) > REMEMBERED_MAX:
            self._lost.popitem(last=False)

    def came(self, agent: str, tab: str) -> str | None:
        """The turn whose end it was not told, or an empty text; None if the tab was not here before."""
        return self._lost.pop((agent, tab), None)
