"""`self.storage`: copies of an agent's whole storage."""

from __future__ import annotations

from pathlib import Path

from perdure.actors.host.tenant import Tenant


class OwnStorage:
    """The storage of one agent as a whole. What lies in it is reached by `sql`, `state` and `transaction` of `Agent`."""

    def __init__(self, tenant: Tenant) -> None:
        self._perdure = tenant

    def snapshot(self, path: str | Path) -> None:
        """Write a consistent copy of the agent's storage to a file of its own."""
        self._perdure.storage.snapshot(Path(path))

    def restore(self, path: str | Path) -> None:
        """Take a snapshot as this agent's storage; only before anything was written to it."""
        self._perdure.restore(Path(path))

    def fork(self, name: str) -> None:
        """Give a new agent of this class a copy of this agent's storage; refused if that agent has one."""
        self._perdure.fork(name)
