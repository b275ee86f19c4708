"""Where the Ray of a data directory is: a small file in it, so that a second command joins the Ray that the first one started."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from perdure.actors.code.permanent_names import remember_format
from perdure.ledger import BadRequest, LedgerUnwritable, NoLongerServed, SupervisorUnreachable

RECORD: Final = "cluster.json"
LOCK: Final = "cluster.lock"
AUTH: Final = "RAY_AUTH_MODE"
PACKAGE: Final = Path(__file__).absolute().parents[2]  # not resolved: in a checkout it is made of links
KNOCK_S: Final = 3.0
HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"  # how HTTP/2, and so gRPC, begins

# What a Ray of our own is started with. Whoever sets one of these in the environment is obeyed.
SETTINGS: Final = {
    "OMP_NUM_THREADS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_enable_metrics_collection": "0",
    "RAY_enable_open_telemetry": "0",
    "RAY_num_workers_soft_limit": "4",  # idle processes that Ray keeps
    "RAY_worker_niceness": "0",  # Ray would put its workers, our supervisor among them, behind everything else on the machine
    "RAY_core_worker_internal_heartbeat_ms": "50",  # after the supervisor's death, callers find its next life so soon, not in 1 s
    "RAY_timeout_ms_task_wait_for_death_info": "50",  # and a call that went down with it fails so soon, not in 1 s
    "RAY_gcs_rpc_server_reconnect_timeout_s": "1000000000",  # or Ray ends a process whose GCS was away for a minute
    "RAY_preload_python_modules": ",".join(
        f"perdure.actors.{module}"
        for module in (
            "ray_world.supervisors",
            "ray_world.hosts",
            "supervisor.supervisor",
            "host.host",
            "chat.chat_agent",
            "messenger.messenger_agent",
        )
    ),
}

# How long Ray tries to reach a cluster: some 15 s. By itself it tries a quarter of an hour if the cluster dies while it is joined.
CONNECT_TIMEOUTS: Final = {
    "RAY_gcs_server_port_wait_time_s": "2",  # which is a number of attempts
    "RAY_gcs_rpc_server_connect_timeout_s": "1",
    "RAY_py_gcs_connect_timeout_s": "5",
}


@contextlib.contextmanager
def startup_lock(data: Path) -> Iterator[None]:
    """Let one process at a time decide whether the directory's Ray is there or must be started."""
    try:
        data.mkdir(parents=True, exist_ok=True)
        lock = (data / LOCK).open("a")
    except OSError as error:
        raise _unwritable(data, error) from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            remember_format(data)
        except OSError as error:
            raise _unwritable(data, error) from error
        yield


def _unwritable(data: Path, error: OSError) -> LedgerUnwritable:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "free some space" if is_full else "check its owner and permissions"
    return LedgerUnwritable(
        str(data), f"it cannot be written: {error.strerror}", f"{advice}, or name another directory"
    )


class Record(NamedTuple):
    """Where a Ray is, and how it wants to be spoken to: `auth` is Ray's `RAY_AUTH_MODE` (the token itself is Ray's business).

    `starter` is the process that started that Ray for this directory, and 0 if the Ray was there before. `stopped` says that somebody has
    stopped what served the directory there, so that nobody who is still connected makes it anew.
    """

    address: str
    auth: str = ""
    starter: int = 0
    stopped: bool = False


def read_record(data: Path) -> Record | None:
    """The Ray that was last used with this directory, if somebody answers there and nobody has stopped what served it."""
    record = _written(data)
    with contextlib.suppress(BadRequest):
        return record if record is not None and not record.stopped and answers(record.address) else None
    return None


def _written(data: Path) -> Record | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        record = Record(**json.loads((data / RECORD).read_text(encoding="utf-8")))
        return record if isinstance(record.address, str) else None
    return None


def write_record(data: Path, address: str, starter: int = 0) -> None:
    """Remember where this directory's Ray is."""
    _write(data, Record(address, os.environ.get(AUTH, ""), starter))


def _write(data: Path, record: Record) -> None:
    draft = data / f"{RECORD}.{os.getpid()}"
    try:
        draft.write_text(json.dumps(record._asdict()), encoding="utf-8")
        draft.replace(data / RECORD)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise _unwritable(data, error) from error


def mark_stopped(data: Path, address: str) -> None:
    """What serves this directory at that address is being stopped."""
    _write(data, Record(address, stopped=True))


def refuse_if_stopped(data: Path, address: str) -> None:
    """Raises `NoLongerServed` if what served this directory at that address was stopped, and nobody serves it anew since."""
    record = _written(data)
    if record is not None and record.stopped and record.address == address:
        advice = "open it anew: what was under way goes on then"
        raise NoLongerServed(str(data), "what served it was stopped (`perdure stop`)", advice)


def forget_record(data: Path, address: str) -> None:
    """This directory's Ray is no more, unless another one has come meanwhile."""
    with contextlib.suppress(OSError, ValueError):
        if json.loads((data / RECORD).read_text(encoding="utf-8")).get("address") == address:
            (data / RECORD).unlink()


def explain_refusal(problem: SupervisorUnreachable, address: str | None) -> SupervisorUnreachable:
    """The same refusal, with what to look at when a cluster that was named does not let us in: Ray says nothing of its token then."""
    if address in (None, "local") or "joined" not in str(problem):
        return problem
    held = "see that ~/.ray/auth_token holds the cluster's token"
    bring = f"if it asks for a token, set {AUTH}=token and bring its token to ~/.ray/auth_token"
    return SupervisorUnreachable(f"{problem}; {held if os.environ.get(AUTH) == 'token' else bring}")


def answers(address: str) -> bool:
    """Whether a Ray says anything at `host:port`. The port of one that was just killed can still be connected to, but stays silent.

    Raises `BadRequest` if it is no such address.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise BadRequest("address", f"{address!r} is not host:port of a Ray cluster that this machine belongs to")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), KNOCK_S) as knocking:
            if os.environ.get("RAY_USE_TLS", "0").lower() in ("1", "true"):
                return True  # it would have to be greeted in another way
            knocking.sendall(HELLO)
            return knocking.recv(1) != b""
    except OSError:
        return False


@contextlib.contextmanager
def ray_environment(more: Mapping[str, str] = SETTINGS) -> Iterator[None]:
    """The environment in which Ray is started and joined. What is set already stays, and what we set is taken back afterwards."""
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


def _import_path(known: str) -> list[str]:
    """Where our own code is, and all that this process can import but a fresh one could not."""
    usual = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix, sys.exec_prefix)]
    places = [str(PACKAGE.parent), *(path for path in sys.path if path and Path(path).is_dir())]
    special = [path for path in places if not any(Path(path).resolve().is_relative_to(prefix) for prefix in usual)]
    return list(dict.fromkeys([*special, *filter(None, known.split(os.pathsep))]))
