"""The record of a data directory: a small file that says where its Ray is, so that a second command joins the Ray of the first."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from perdure import ledger
from perdure.actors.ray_world.identity import IDENTITY, identity_of
from perdure.actors.ray_world.os_processes import runs_here, with_command
from perdure.ledger import (
    FORMAT,
    FORMAT_FILE,
    LEDGER,
    BadRequest,
    Holder,
    LedgerError,
    LedgerLost,
    LedgerUnwritable,
    NoLongerServed,
    SupervisorUnreachable,
    Traces,
    bucket_of,
    check_format,
    given_as,
    keep_whole,
    keep_word,
    unreadable,
    where_to_ask,
)

LEDGER_FILE: Final = re.compile(r"ledger\.(db|journal\.\d+)$")
STORAGES: Final = "agents/[0-9a-f][0-9a-f]/*.db"
WAY_BACK: Final = (
    "bring the ledger back from where the directory was copied, or restore a backup with `perdure restore`; to begin anew, use another"
    " directory, and keep this one"
)
RECORD: Final = "cluster.json"
LOCK: Final = "cluster.lock"
AUTH: Final = "RAY_AUTH_MODE"
ADDRESS: Final = "RAY_ADDRESS"
PACKAGE: Final = Path(__file__).absolute().parents[2]  # not resolved: in a checkout it is made of links
KNOCK_S: Final = 3.0  # for a Ray to answer
HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # the first bytes of HTTP/2, which gRPC speaks

# What a process of ours has imported before it is needed.
PRELOADED: Final = tuple(
    f"perdure.actors.{module}"
    for module in (
        "ray_world.supervisors",
        "ray_world.hosts",
        "supervisor.supervisor",
        "host.host",
        "chat.chat_agent",
        "messenger.messenger_agent",
    )
)

# The settings of our processes, in whichever Ray.
QUICK: Final = {
    "RAY_core_worker_internal_heartbeat_ms": "50",  # how soon callers find a supervisor that was restarted; by default 1 s
    "RAY_timeout_ms_task_wait_for_death_info": "50",  # how soon a call fails that was under way then; by default 1 s
}
FLUSH: Final = (
    "RAY_task_events_shutdown_flush_timeout_ms"  # how long who leaves waits for a GCS that is gone; by default 5 s
)

# The settings of a Ray of our own. A variable that is set already keeps its value.
SETTINGS: Final = {
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_enable_open_telemetry": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # where memory runs out the kernel ends who has most; Ray the newest, our supervisor among them
    "RAY_num_workers_soft_limit": "4",  # idle workers that Ray keeps
    "RAY_worker_niceness": "0",  # by default Ray's workers, our supervisor among them, yield to every other process
    **QUICK,
    FLUSH: "10",  # it is gone always, and what is told to it, too
    "RAY_gcs_rpc_server_reconnect_timeout_s": "1000000000",  # by default Ray ends a process whose GCS was away for 60 s
    "RAY_preload_python_modules": ",".join(PRELOADED),
}

# The timeouts are together some 15 s. By default Ray tries for 15 minutes to join a cluster that dies meanwhile.
JOINED: Final = {
    **QUICK,
    FLUSH: "200",
    "RAY_gcs_server_port_wait_time_s": "2",  # in truth a number of attempts
    "RAY_gcs_rpc_server_connect_timeout_s": "1",
    "RAY_py_gcs_connect_timeout_s": "5",
}


def check_directory(data: Path) -> None:
    """Raise a `LedgerError` if this directory must not be used: its ledger is lost, it is of another format than this Perdure reads, or its
    files are of two directories."""
    refuse_without_ledger(data)
    check_format(data)
    identity_of(data)


def refuse_without_ledger(data: Path) -> None:
    """Raise `LedgerLost` if there are storages of agents here and no ledger, or something else in its place, and `LedgerUnwritable` if
    that cannot be seen. Besides storages the directory's word counts, which is written into the ledger's folder first: code, logs and the
    other files are also written by a start that was cut off before it had begun a ledger."""
    ledger = data / LEDGER
    if ledger.exists() and not ledger.is_dir():
        raise LedgerLost(str(data), f"{ledger} is no directory", "put the ledger's directory in its place")
    try:
        if any(LEDGER_FILE.match(each.name) for each in ledger.iterdir()):
            return
    except FileNotFoundError:
        pass
    except OSError as problem:
        raise unreadable(ledger, problem) from problem
    first = next((each for each in data.glob(STORAGES) if each.is_file()), None)
    is_bereft = (data / IDENTITY).exists() and not (ledger / IDENTITY).exists()
    if first is None and not is_bereft:
        return
    there = "it was in use" if first is None else f"there are storages of agents ({first} is one)"
    found = "is empty" if ledger.exists() else "is missing"
    raise LedgerLost(str(data), f"{there}, but its ledger {ledger} {found}", WAY_BACK)


@contextlib.contextmanager
def startup_lock(data: Path) -> Iterator[None]:
    """Held by the process that looks for the directory's Ray and starts one if there is none. Raises `LedgerUnwritable`."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = (data / LOCK).open("a")
    except OSError as error:
        raise _unwritable(data, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def begin_directory(data: Path) -> str:
    """Write the format and the identity of a directory, if it is new, and where one of their files is missing. Returns its identity. The
    caller has the startup lock. Raises `LedgerUnwritable`, and what `check_format` and `identity_of` raise."""
    check_format(data)
    identity = identity_of(data) or secrets.token_hex(8)
    try:
        keep_word(data, FORMAT_FILE, str(FORMAT))
        keep_word(data, IDENTITY, identity)
    except OSError as error:
        raise _unwritable(data, error) from error
    return identity


def _unwritable(data: Path, error: OSError) -> LedgerUnwritable:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "free some space" if is_full else "check its owner and permissions"
    return LedgerUnwritable(
        str(data), f"it cannot be written: {error.strerror}", f"{advice}, or name another directory"
    )


class ClusterRecord(NamedTuple):
    """Where the Ray of a directory is.

    Args:
        address: of its GCS, `host:port`.
        auth: its `RAY_AUTH_MODE`. Ray keeps the token itself.
        starter: the number of the process that started it for this directory; 0 if the Ray was there before.
        stopped: the directory was stopped on purpose (`perdure stop`), so clients that are still connected start no supervisor.
    """

    address: str
    auth: str = ""
    starter: int = 0
    stopped: bool = False


def read_record(data: Path) -> ClusterRecord | None:
    """The Ray that the directory used last; None if it does not answer, or if the directory was stopped since."""
    record = _written(data)
    with contextlib.suppress(BadRequest):
        return record if record is not None and not record.stopped and answers(record.address) else None
    return None


def is_started_here(data: Path, address: str) -> bool:
    """Whether a program of this machine has started the Ray at this address for the directory. It ends with that program."""
    record = _written(data)
    return record is not None and record.starter > 0 and record.address == address


def ray_of(data: Path) -> ClusterRecord | None:
    return next(rays_of(data), None)


def rays_of(data: Path) -> Iterator[ClusterRecord]:
    """The Rays that may serve the directory, as far as they answer: the one that it used last; of a bucket also the one that `RAY_ADDRESS`
    names, and the one that serves it as the bucket itself says, if this machine is a node of it."""
    record, named = read_record(data), os.environ.get(ADDRESS)
    if record is not None:
        yield record
    if not bucket_of(data):
        return
    with contextlib.suppress(BadRequest):
        if named and (named == "auto" or answers(named)):
            yield ClusterRecord(named)
    holder, is_over = last_life_of(data)
    if holder is None or is_over or not holder.session or not runs_here(holder.session):
        return
    with contextlib.suppress(BadRequest):
        if answers(holder.address):
            yield ClusterRecord(holder.address, holder.auth)


def last_life_of(data: Path) -> tuple[Holder | None, bool]:
    """Who has begun last on the bucket of this cache, and whether that life has departed. Nobody, if the bucket cannot be read from here:
    who needs it says why."""
    with contextlib.suppress(LedgerError, BadRequest, ImportError):
        return ledger.last_life_in(bucket_of(data))
    return None, False


def traces_of(holder: Holder) -> Traces:
    return Traces(bool(with_command(holder.session)), refuses(holder.address))


# Whether nobody listens there any more. A busy machine is only slow to answer.
def refuses(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        pass
    return False


# That nothing serves the directory as far as this machine knows, and where a bucket is served.
def nothing_serves(data: Path) -> str:
    if not bucket_of(data):
        return f"nothing serves {data}"
    return f"nothing that is known on this machine serves {bucket_of(data)}; {where_to_ask(last_life_of(data))}"


def _written(data: Path) -> ClusterRecord | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return record_in((data / RECORD).read_bytes())
    return None


def record_in(content: bytes) -> ClusterRecord:
    record = ClusterRecord(**json.loads(content))
    if [type(each) for each in record] != [str, str, int, bool]:
        raise ValueError("it has other values than a record")
    return record


def write_record(data: Path, address: str, starter: int = 0) -> None:
    _write(data, ClusterRecord(address, os.environ.get(AUTH, ""), starter))


# Note where the supervisor of a bucket was found, for the next command of this machine.
def remember(data: Path, address: str) -> None:
    if bucket_of(data) and read_record(data) is None:
        with contextlib.suppress(LedgerUnwritable):
            write_record(data, address)


def _write(data: Path, record: ClusterRecord) -> None:
    try:
        keep_whole(data / RECORD, json.dumps(record._asdict()).encode())
    except OSError as error:
        raise _unwritable(data, error) from error


def mark_stopped(data: Path, address: str) -> None:
    _write(data, ClusterRecord(address, stopped=True))


def refuse_if_stopped(data: Path, address: str) -> None:
    record = _written(data)
    if record is not None and record.stopped and record.address == address:
        advice = "open it anew: what was under way goes on then"
        raise NoLongerServed(given_as(data), "what served it was stopped (`perdure stop`)", advice)


def forget_record(data: Path, address: str) -> None:
    record = _written(data)
    if record is not None and record.address == address:
        with contextlib.suppress(OSError):
            (data / RECORD).unlink()


# Ray's own message about a cluster that asks for a token does not mention it.
def explain_refusal(problem: SupervisorUnreachable, address: str | None) -> SupervisorUnreachable:
    if address in (None, "local") or "joined" not in str(problem):
        return problem
    held = "see that ~/.ray/auth_token holds the cluster's token"
    bring = f"if it asks for a token, set {AUTH}=token and bring its token to ~/.ray/auth_token"
    return SupervisorUnreachable(f"{problem}; {held if os.environ.get(AUTH) == 'token' else bring}")


def answers(address: str) -> bool:
    """Whether a Ray answers at `host:port`. To connect is not enough: the port of a Ray that was just killed still accepts connections.

    Raises `BadRequest` if the address has another form.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise BadRequest("address", f"{address!r} is not host:port of a Ray cluster that this machine belongs to")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), KNOCK_S) as knocking:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return True  # it answers only after a TLS handshake
            knocking.sendall(HELLO)
            return knocking.recv(1) != b""
    except OSError:
        return False


@contextlib.contextmanager
def ray_environment(more: Mapping[str, str] = SETTINGS) -> Iterator[None]:
    """Set the environment in which Ray is started and joined. Variables that are set already stay; ours are removed afterwards."""
    ours = {name: value for name, value in more.items() if value and name not in os.environ}
    before = os.environ.get("PYTHONPATH")
    os.environ.update(ours)
    os.environ["PYTHONPATH"] = os.pathsep.join(_import_path(before or ""))
    try:
        yield
    finally:
        for name in ours:
            os.environ.pop(name, None)
        os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


# What this process imports from and a new one would not, the place of our own code first.
def _import_path(known: str) -> list[str]:
    usual = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    places = [str(PACKAGE.parent), *(path for path in sys.path if path and Path(path).is_dir())]
    special = [path for path in places if not any(Path(path).resolve().is_relative_to(prefix) for prefix in usual)]
    return list(dict.fromkeys([*special, *filter(None, known.split(os.pathsep))]))
