"""Starting, joining and leaving a Ray, with the workarounds that Ray needs.

Only the driver's own thread calls these functions.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import ray

from perdure.actors.ray_world.cluster_record import (
    AUTH,
    JOINED,
    PACKAGE,
    answers,
    ray_environment,
    rays_of,
    remember,
)
from perdure.actors.ray_world.deployment import Deployment
from perdure.actors.ray_world.os_processes import children, descendants, kill, runs_here, this_process
from perdure.actors.ray_world.ray_internals import (
    EXIT_ADVICE,
    EXIT_DETAIL,
    RAYLET,
    SESSION,
    STARTUP_TIMEOUTS,
    as_our_own,
    read_settings,
    shut_down,
    silence_worker_logs,
)
from perdure.ledger import BadRequest, SupervisorUnreachable, bucket_of, given_as
from perdure.policies import Limits

NAMESPACE: Final = "perdure"
STORE_BYTES: Final = 80 * 1024 * 1024  # small, since calls carry their data; Ray accepts no less than 75 MB
SIGACTION_BYTES: Final = 512  # more than any system's `struct sigaction`
_NEEDS_DOCSTRINGS: Final = (
    "no Ray starts under `-OO` or PYTHONOPTIMIZE=2, which take the docstrings that it needs away; use `-O` at most"
)
_MARGIN: Final = " |+-"  # of a group of errors in a traceback


# The address of its GCS; its session, which stands in the command lines of its processes; and the node of this process, which stands in
# that of its raylet.
class RayConnection(NamedTuple):
    address: str
    session: str
    node: str


def connection() -> RayConnection | None:
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return RayConnection(context.gcs_address, context.get_session_name(), context.get_node_id())


# Start a Ray of our own, for a second time if Ray gives its own processes up as too slow.
# Without docstrings Ray's processes fail as they begin, and that they do is found out only after a minute.
def start(num_cpus: int | None) -> None:
    if sys.flags.optimize > 1:
        raise BadRequest("python", _NEEDS_DOCSTRINGS)
    options = {"address": "local", "num_cpus": num_cpus, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    try:
        _init(**options)
    except SupervisorUnreachable as problem:
        if not any(text in str(problem.__cause__) for text in STARTUP_TIMEOUTS):
            raise
        _init(**options)


# Join the Ray that serves the directory. Raises `SupervisorUnreachable` if it cannot be joined, and `ValueError` if nothing does.
def _join_recorded(data: Path) -> None:
    name = Deployment(data, Limits(), bucket=bucket_of(data)).supervisor
    refused: SupervisorUnreachable | None = None
    for known in rays_of(data):
        try:
            with ray_environment({AUTH: known.auth}):
                _init(address=known.address)
                ray.get_actor(name, NAMESPACE)  # another Ray may have the address by now
                remember(data, ray.get_runtime_context().gcs_address)
        except SupervisorUnreachable as problem:
            refused = problem
        except ValueError:
            shut_down()
        else:
            return
    raise refused or ValueError(f"there is no Ray for {given_as(data)}")


def begin(address: str | None, start_with: Callable[[], None] | None, data: Path) -> bool:
    """Join the Ray at this address, or else the one that serves the directory, or start one. Returns whether it is our own.

    Raises `SupervisorUnreachable` if it cannot be joined or started, and `ValueError` if nothing serves the directory and nothing may be
    started.
    """
    if address not in (None, "local"):
        _join_named(str(address))
        return False
    if address is None:
        with contextlib.suppress(*(() if start_with is None else (ValueError, SupervisorUnreachable))):
            _join_recorded(data)
            return False
    if start_with is None:
        raise ValueError(f"there is no Ray for {given_as(data)}")
    start_with()
    return True


def _join_named(address: str) -> None:
    def has_us() -> bool:  # an inner function, because Ray sends those by value
        return importlib.util.find_spec("perdure") is not None

    if address != "auto" and not answers(address):
        raise SupervisorUnreachable(f"no Ray answers at {address}")
    _init(address=address)
    if not ray.get(ray.remote(num_cpus=0)(has_us).remote()):
        shut_down()  # only `ray.init` takes the environment of a whole driver
        _init(address=address, runtime_env={"py_modules": [str(PACKAGE)]})


def _init(**options: Any) -> None:
    before, is_own = children(this_process()), options["address"] == "local"
    if not is_own and not runs_here(RAYLET):  # Ray would look for one for a minute
        which = "" if options["address"] == "auto" else f", so it is no node of the one at {options['address']}"
        raise SupervisorUnreachable(f"no Ray runs on this machine{which}; run this on a machine of that cluster")
    try:
        apart = as_our_own() if is_own else contextlib.nullcontext()
        with sigterm_kept(), ray_environment({} if is_own else JOINED), apart:
            read_settings()
            ray.init(namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR, **options)
    except Exception as error:  # that very class is among what Ray raises
        for process in children(this_process(), SESSION):
            kill([*descendants(process), process] if process not in before else [])
        shut_down()
        raise SupervisorUnreachable(f"Ray cannot be started or joined: {cause_of(error)}") from error
    if "PERDURE_RAY_NOISE" not in os.environ:
        silence_worker_logs()


# The line of Ray's long message that tells the cause.
def cause_of(error: BaseException) -> str:
    lines = [line.strip(_MARGIN) for line in str(error).splitlines() if line.strip(_MARGIN)] or [type(error).__name__]
    _, mark, detail = lines[-1].rpartition(EXIT_DETAIL)
    return (detail.partition(EXIT_ADVICE)[0] if mark else lines[-1])[:300]


# One form for all the ways to write an address.
def canonical(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        host = socket.gethostbyname(host)
    own: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return "here" if host.startswith("127.") or host == own else host, port


# `ray.init` replaces the handler of `SIGTERM` by one that prints a stack and aborts.
@contextlib.contextmanager
def sigterm_kept() -> Iterator[None]:
    libc, kept = ctypes.CDLL(None), ctypes.create_string_buffer(SIGACTION_BYTES)
    libc.sigaction(signal.SIGTERM, None, kept)
    try:
        yield
    finally:
        libc.sigaction(signal.SIGTERM, kept, None)
