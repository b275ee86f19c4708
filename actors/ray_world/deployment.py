"""What every process of one data directory is told at its birth."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from perdure.actors.code.naming import load_type
from perdure.actors.ports import PoolSpec
from perdure.policies import Limits


class Implementations(NamedTuple):
    """By which classes the processes are played. Names, so that a test may put toys in their places."""

    supervisor: str = "perdure.actors.supervisor.supervisor:Supervisor"
    host: str = "perdure.actors.host.host:Host"
    store: str = "perdure.ledger.store.duckdb_store:DuckDBStore"
    cabinet: str = "perdure.ledger.storage.cabinet:Cabinet"
    disk: str = "perdure.ledger.storage.file_disk:FileDisk"


class Deployment(NamedTuple):
    """The directory, its limits, and its players. `own` says that Ray was started for this directory, by us, on this machine;
    `package` is what a host's agents came in, if they are not installed."""

    data: Path
    limits: Limits
    own: bool = False
    implementations: Implementations = Implementations()
    package: str = ""

    @property
    def key(self) -> str:
        """The directory's share in the names of its actors."""
        return hashlib.blake2b(str(self.data).encode(), digest_size=8).hexdigest()

    @property
    def supervisor(self) -> str:
        """The name of the directory's supervisor."""
        return f"supervisor-{self.key}"

    def host(self, host_id: str, spec: PoolSpec) -> str:
        """The name of a host. It says the host's pool too, so that a supervisor need not ask the hosts that it finds."""
        return f"{self._hosts}{host_id}" + (f" {json.dumps(spec)}" if spec != PoolSpec() else "")

    def hosts_among(self, names: Iterable[str]) -> dict[str, PoolSpec]:
        """The directory's hosts, by id, among all names that there are."""
        ours = (name.removeprefix(self._hosts).partition(" ") for name in names if name.startswith(self._hosts))
        return {host_id: _spec_from(text) for host_id, _, text in ours}

    @property
    def _hosts(self) -> str:
        return f"host-{self.key}-"

    @property
    def ledger_dir(self) -> Path:
        """Where the ledger lies."""
        return self.data / "ledger"

    @property
    def code_dir(self) -> Path:
        """Where the text of notebooks is kept."""
        return self.data / "code"

    def part(self, name: str, *arguments: object) -> Any:
        """Make what plays this part."""
        return load_type(getattr(self.implementations, name))(*arguments)

    def cabinet(self) -> Any:
        """Open the cabinet of the agents' storages."""
        return self.part("cabinet", self.part("disk", self.data / "agents"))


def _spec_from(text: str) -> PoolSpec:
    if not text:
        return PoolSpec()
    num_cpus, resources, runtime_env = json.loads(text)
    return PoolSpec(num_cpus, tuple((name, amount) for name, amount in resources), runtime_env)
