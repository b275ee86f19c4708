"""Who keeps a ledger that nothing serves as a backup needs it."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Self

from perdure.ledger.directory_format import LEDGER
from perdure.ledger.maintenance.cold_view import read_cold
from perdure.ledger.maintenance.cut import STAGE, read_known, stage_cut
from perdure.ledger.store.lock import Lock


class ColdSteward:
    """Has the lock of the ledger, so that nobody decides anything. Raises `LedgerLocked` if somebody else has it."""

    def __init__(self, data: Path) -> None:
        self._data, self._stack = data, ExitStack()

    def __enter__(self) -> Self:
        self._stack.callback(Lock(self._data / LEDGER).release)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def hold(self) -> object:
        """Nothing changes."""
        return True

    def cut(self) -> object:
        """Make the cut. Raises `LedgerError` if the ledger cannot be read."""
        known, seq = read_cold(self._data / LEDGER)
        reported = [(agent, each.reported) for agent, each in known.standing.items()]
        stage_cut(self._data, read_known(self._data / STAGE), seq, reported)
        return True
