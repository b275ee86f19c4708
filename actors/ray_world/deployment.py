"""The configuration that every process of one data directory is started with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perdure import ledger
from perdure.actors.code.naming import load_type
from perdure.actors.ports import PoolSpec
from perdure.actors.ray_world.cluster_record import check_directory, traces_of
from perdure.actors.ray_world.identity import refuse_elsewhere
from perdure.ledger import (
    AGENTS,
    LEDGER,
    NOBODY,
    BadRequest,
    CarriedDisk,
    Claim,
    begin_cache,
    own_folder,
    replica_of,
)
from perdure.policies import Limits

if TYPE_CHECKING:
    from perdure.ledger.store.bucket_store import BucketStore  # which brings what reaches buckets with it

LOGS: Final = "logs"


# The names of the classes that the processes run, so that a test may replace them.
class Implementations(NamedTuple):
    supervisor: str = "perdure.actors.supervisor.supervisor:Supervisor"
    host: str = "perdure.actors.host.host:Host"
    store: str = "perdure.ledger.store.duckdb_store:DuckDBStore"
    agent_storages: str = "perdure.ledger.storage.agent_storages:AgentStorages"
    disk: str = "perdure.ledger.storage.file_disk:FileDisk"
    gateway: str = "perdure.actors.serve.server:GatewayServer"


class Deployment(NamedTuple):
    """What a supervisor and its hosts are started with.

    Args:
        data: the directory.
        limits: those in force.
        own: this machine's Ray was started by us, for this directory.
        implementations: the classes that are run.
        package: the package with the code of a host's agents; empty if that is installed.
        telemetry: the variables of OpenTelemetry in the environment of who started it; none if telemetry was off there.
        identity: which directory is meant (`identity`); empty if that is not known.
        bucket: the URL of the bucket that the directory is a cache of, on each machine its own; empty if it is the place of record.
        claim: who serves the bucket.
    """

    data: Path
    limits: Limits
    own: bool = False
    implementations: Implementations = Implementations()
    package: str = ""
    telemetry: tuple[tuple[str, str], ...] = ()
    identity: str = ""
    bucket: str = ""
    claim: Claim = NOBODY

    # The same on this machine.
    def here(self) -> Deployment:
        return self._replace(data=begin_cache(self.bucket)) if self.bucket else self

    @property
    def key(self) -> str:
        return hashlib.blake2b((self.bucket or str(self.data)).encode(), digest_size=8).hexdigest()

    @property
    def supervisor(self) -> str:
        return f"supervisor-{self.key}"

    # The name contains the pool, so that a supervisor knows the pools of the hosts that it finds.
    def host(self, host_id: str, spec: PoolSpec) -> str:
        return f"{self._hosts}{host_id}" + (f" {json.dumps(spec)}" if spec != PoolSpec() else "")

    def hosts_among(self, names: Iterable[str]) -> dict[str, PoolSpec]:
        ours = (name.removeprefix(self._hosts).partition(" ") for name in names if name.startswith(self._hosts))
        return {host_id: PoolSpec.of(*json.loads(text)) if text else PoolSpec() for host_id, _, text in ours}

    @property
    def _hosts(self) -> str:
        return f"host-{self.key}-"

    # No name is used twice: a dead actor may still have it.
    def gateway(self, port: int, number: int) -> str:
        return f"{self._gateways}{port}-{number}"

    # The ports of the directory's gateways, by the names of the actors that are their processes.
    def gateways_among(self, names: Iterable[str]) -> dict[str, str]:
        ours = (name for name in names if name.startswith(self._gateways))
        return {name: name.removeprefix(self._gateways).partition("-")[0] for name in ours}

    @property
    def _gateways(self) -> str:
        return f"gateway-{self.key}-"

    def check_ledger(self) -> None:
        if self.implementations.store == Implementations().store and not self.bucket:
            check_directory(self.data)

    @property
    def code_dir(self) -> Path:
        return self.data / "code"

    # The logs of this machine's processes, if other machines have their own.
    @property
    def own_logs(self) -> Path | None:
        return self.data / LOGS if self.bucket else None

    def last_words(self, host_id: str) -> Path:
        return self.data / "hosts" / host_id

    def part(self, name: str, *arguments: object) -> Any:
        return load_type(getattr(self.implementations, name))(*arguments)

    def store(self) -> Any:
        """The ledger. Raises `BadRequest` if it is in a bucket, and what reaches buckets is not installed."""
        place = self.data / LEDGER
        if self.bucket:
            with bucket_needed("data", self.bucket):
                return ledger.open_bucket(place, self.bucket, self.claim, traces=traces_of)
        if (replica := replica_of(self.data)) is not None:
            with bucket_needed("replica", replica.url):
                return ledger.open_replicated(self.data, replica, self.identity)
        return self.part("store", place)

    def agent_storages(self) -> Any:
        if self.bucket:
            return self.part("agent_storages", CarriedDisk(own_folder(self.data / AGENTS)))
        here = partial(refuse_elsewhere, self.data, self.identity)
        return self.part("agent_storages", self.part("disk", self.data / AGENTS, None, here))


def bucket_store(place: Path, url: str, *, looks: bool = False) -> BucketStore:
    """The ledger in a bucket, with its cache at a place; with `looks` to look at it only. Raises `BadRequest` if what reaches buckets is
    not installed."""
    with bucket_needed("data", url):
        return ledger.open_bucket(place, url, looks=looks)


@contextmanager
def bucket_needed(field: str, url: str) -> Iterator[None]:
    """Inside, what reaches buckets is imported. Raises `BadRequest` if it is not installed."""
    try:
        yield
    except ImportError as problem:
        raise BadRequest(field, f"{url} needs `pip install 'perdure[bucket]'` ({problem})") from problem


def check_bucket(field: str, url: str) -> None:
    """Raise `BadRequest` if what reaches buckets is not installed here, and a `LedgerError` if this one cannot be read."""
    with bucket_needed(field, url):
        ledger.look_into(url)
