"""What we use of Ray that Ray does not promise: one table, and the functions that use its rows.

Everything else in this folder is Ray's public API. `pyproject.toml` caps Ray's version because of these rows;
`tests/actors/ray_world/test_ray_internals.py` fails if one of them is gone or has another shape, so that the cap is raised knowingly.
Tried with Ray 2.60.0.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import importlib
import io
import math
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import ray
from ray.runtime_env import RuntimeEnv

from perdure.actors.ray_world.os_processes import ProcessId, process_of, with_environment


class Internal(NamedTuple):
    """One private attribute of Ray.

    Args:
        module: where it stands.
        path: its dotted path in that module.
        parameters: the names of its parameters; None for what is no function.
        why: what we do with it.
        without: what would happen if we did not.
    """

    module: str
    path: str
    parameters: tuple[str, ...] | None
    why: str
    without: str

    @property
    def method(self) -> str:
        return self.path.rpartition(".")[2]

    def find(self) -> Any:
        """The attribute. Raises `ImportError` or `AttributeError` if this Ray does not have it."""
        found: object = importlib.import_module(self.module)
        for name in self.path.split("."):
            found = getattr(found, name)
        return found


DISCONNECT: Final = Internal(
    "ray._private.worker",
    "disconnect",
    ("exiting_interpreter",),
    "the first step of `shut_down`: from then on Ray refuses new calls of this driver",
    "a thread that drops a reference while the core worker is taken down ends the process",
)
GLOBAL_WORKER: Final = Internal(
    "ray._private.worker",
    "global_worker",
    None,
    "holds `core_worker`, which `shut_down` takes away before it ends it",
    "as above",
)
GLOBAL_STATE: Final = Internal(
    "ray._private.state",
    "state",
    None,
    "holds a connection to the GCS; a forked process never puts it away",
    "a process that was forked from a driver crashes or hangs when it ends",
)
GLOBAL_NODE: Final = Internal(
    "ray._private.worker",
    "_global_node",
    None,
    "the same",
    "as above",
)
SHUTDOWN_DRIVER: Final = Internal(
    "ray._raylet",
    "CoreWorker.shutdown_driver",
    ("self",),
    "ends the core worker that was taken away",
    "the driver stays connected",
)
READ_SETTINGS: Final = Internal(
    "ray._raylet",
    "Config.initialize",
    ("config_list",),
    "makes Ray read its `RAY_…` variables again before each `ray.init`",
    "a second Ray of a process has the settings of the first",
)
PRINT_WORKER_LOG: Final = Internal(
    "ray._private.worker",
    "print_to_stdstream",
    ("data", "ignore_prefix"),
    "is replaced by a function that prints nothing",
    "Ray writes each death of a worker to our stdout, `log_to_driver` or not",
)
AUTO_CONNECT: Final = Internal(
    "ray._private.auto_init_hook",
    "enable_auto_connect",
    None,
    "is False while this process has a runtime open",
    "a call between two lives of our Ray starts a cluster that is not ours",
)
DRAINING_NODES: Final = Internal(
    "ray._private.state",
    "GlobalState.get_draining_nodes",
    ("self",),
    "says which nodes drain, and until when",
    "their hosts would work there until they die with them",
)
FREE_RESOURCES: Final = Internal(
    "ray._private.state",
    "GlobalState.available_resources_per_node",
    ("self",),
    "says how much of each node is taken, by whomever",
    "hosts would go where other programs are at work",
)
START_MONITOR: Final = Internal(
    "ray._private.node",
    "Node.start_monitor",
    ("self",),
    "starts the autoscaler, and is left out: a Ray of our own is one machine",
    "each start of a Ray takes a process and some 0.8 s of processor time more",
)
START_LOG_MONITOR: Final = Internal(
    "ray._private.node",
    "Node.start_log_monitor",
    ("self",),
    "starts what sends the workers' output to drivers, and is left out: ours is written to no driver",
    "as above",
)
START_API_SERVER: Final = Internal(
    "ray._private.node",
    "Node.start_api_server",
    ("self", "include_dashboard", "raise_on_failure"),
    "starts the server of the dashboard, and is left out: without the dashboard it only reports usage",
    "as above, and whoever starts a Ray waits for it",
)
UPLOAD: Final = Internal(
    "ray._private.runtime_env.packaging",
    "upload_package_to_gcs",
    ("pkg_uri", "pkg_bytes"),
    "gives a package of code to Ray, which brings it to the nodes of a cluster that share no directory",
    "agents whose code is not installed there could not be begun",
)
GCS_CLIENT: Final = Internal(
    "ray.experimental.internal_kv",
    "internal_kv_get_gcs_client",
    (),
    "its `get_cluster_status` tells what nodes have left, what waits, and what the autoscaler can never give",
    "a host that waits for a GPU looks like one that does not come up, and one that waits in vain like one that waits",
)
AUTOSCALER_MESSAGES: Final = Internal(
    "ray.core.generated",
    "autoscaler_pb2",
    None,
    "has `GetClusterStatusReply`, in which that is told",
    "as above",
)
KV_GET: Final = Internal(
    "ray.experimental.internal_kv",
    "_internal_kv_get",
    ("key", "namespace"),
    "reads what the first autoscaler has left under `AUTOSCALING_STATUS`",
    "a cluster that grows looks like one that does not",
)
PRESTART: Final = Internal(
    "ray.core.generated.node_manager_pb2",
    "PrestartWorkersRequest",
    None,
    "asks a raylet to start a process for no job, and to keep it",
    "a supervisor that is restarted waits a second or two for its process, where the node has few processors or the first program is gone",
)
RAYLET_CALLS: Final = Internal(
    "ray.core.generated.node_manager_pb2_grpc",
    "NodeManagerServiceStub",
    ("channel",),
    "brings it to the raylet",
    "as above",
)
CHANNEL: Final = Internal(
    "ray._private.grpc_utils",
    "init_grpc_channel",
    ("address", "options", "asynchronous", "credentials"),
    "connects to the raylet, with Ray's certificates and token",
    "as above",
)
ENVIRONMENT_INFO: Final = Internal(
    "ray._private.utils",
    "get_runtime_env_info",
    ("runtime_env", "is_job_runtime_env", "serialize"),
    "writes an environment as the raylet reads it",
    "as above",
)
DIE_WITH_STARTER: Final = Internal(
    "ray._private.utils",
    "set_kill_on_parent_death_linux",
    (),
    "is the last that a new process of Ray calls before it becomes what it is; one of a Ray of our own begins a session there",
    "a signal to the program's process group, as `timeout` sends it, ends the GCS, without which nothing can be put away",
)
UNUSED: Final = (START_MONITOR, START_LOG_MONITOR, START_API_SERVER)
INTERNALS: Final = (
    DISCONNECT,
    GLOBAL_WORKER,
    GLOBAL_STATE,
    GLOBAL_NODE,
    SHUTDOWN_DRIVER,
    READ_SETTINGS,
    PRINT_WORKER_LOG,
    AUTO_CONNECT,
    UPLOAD,
    GCS_CLIENT,
    AUTOSCALER_MESSAGES,
    KV_GET,
    DRAINING_NODES,
    FREE_RESOURCES,
    PRESTART,
    RAYLET_CALLS,
    CHANNEL,
    ENVIRONMENT_INFO,
    DIE_WITH_STARTER,
    *UNUSED,
)

RAYLET_S: Final = 10.0  # for a raylet to answer

# Texts by which we recognise Ray's processes and what they say. None of them is documented.
GCS: Final = "/gcs_server "  # in the command line of the GCS
RAYLET: Final = "/raylet/raylet "  # in the command line of a raylet
IDLE_WORKER: Final = "ray::IDLE"  # in the command line of a worker without work
SESSION: Final = "/session_"  # in the command lines of the processes of any session
RAYLET_PID: Final = "RAY_RAYLET_PID"  # a variable in the environment of every worker
SETUP_HOOK: Final = (
    "__RAY_WORKER_PROCESS_SETUP_HOOK_ENV_VAR"  # a variable that names what a worker calls before it gets work
)
EXIT_DETAIL: Final = "Worker exit detail: "  # before the cause of a worker's death
EXIT_ADVICE: Final = " Some common causes"  # after it
LOST: Final = (
    "Worker unexpectedly exits with a connection error code"  # in the cause of a death that Ray only sees from outside
)
AUTOSCALING_STATUS: Final = "__autoscaling_status"  # the key of the first autoscaler's report
STARTUP_TIMEOUTS: Final = (  # in the error of a Ray that was too slow to start
    "timed out during startup",
    "while waiting for node to startup",
    "Timed out waiting for",
)
TEXTS: Final = (
    GCS,
    RAYLET,
    IDLE_WORKER,
    SESSION,
    RAYLET_PID,
    SETUP_HOOK,
    EXIT_DETAIL,
    EXIT_ADVICE,
    LOST,
    AUTOSCALING_STATUS,
    *STARTUP_TIMEOUTS,
)


def read_settings() -> None:
    READ_SETTINGS.find()("")


# By the ids of the nodes, when each ends, by the wall clock in milliseconds; 0 if that is not said.
def draining_nodes() -> dict[str, int]:
    return dict(getattr(GLOBAL_STATE.find(), DRAINING_NODES.method)())


# By the ids of the nodes, what Ray has not given away.
def free_cpus() -> dict[str, float]:
    free: dict[str, dict[str, float]] = getattr(GLOBAL_STATE.find(), FREE_RESOURCES.method)()
    return {node: resources.get("CPU", 0.0) for node, resources in free.items()}


# Have the node of this actor start a process for no job, of an environment that `RuntimeContext` has written, and keep it idle for so long.
def start_idle(environment: str, kept_s: int) -> None:
    here = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    own = next(each for each in nodes if each["NodeID"] == here)
    info = ENVIRONMENT_INFO.find()(RuntimeEnv.deserialize(environment))
    wanted = PRESTART.find()(num_workers=1, keep_alive_duration_secs=kept_s, runtime_env_info=info)
    with CHANNEL.find()(f"{own['NodeManagerAddress']}:{own['NodeManagerPort']}") as channel:
        RAYLET_CALLS.find()(channel).PrestartWorkers(wanted, timeout=RAYLET_S)


# They still run if the raylet is dead itself.
def workers_of(raylet: ProcessId) -> list[ProcessId]:
    holder = process_of(raylet.pid)  # another raylet may have its number since
    until_ms = math.inf if holder is None or holder == raylet else holder.started_ms
    found = with_environment(RAYLET_PID, str(raylet.pid))
    return [each for each in found if raylet.started_ms <= each.started_ms < until_ms]


def leave_to_parent() -> bool:
    """In a process that was forked just now: leave the Ray of which it has the memory to its parent. Returns whether there is one.

    Whatever puts an object of Ray's away waits for threads that are not here, or crashes. So these objects are never put away, and the
    process ends without what C++ does at exit.
    """
    atexit.unregister(ray.shutdown)
    if not ray.is_initialized():
        return False
    worker = GLOBAL_WORKER.find()
    for each in (worker, vars(worker).pop("core_worker", None), GLOBAL_STATE.find(), GLOBAL_NODE.find()):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(each))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):
        libc.on_exit(libc["_exit"], None)
        libc.on_exit(libc.fcloseall, None)  # the last one comes first
    return True


def shut_down() -> None:
    """Leave a Ray, or end the one that was started here: `ray.shutdown` in another order. What is gone already is passed over.

    Ray ends the process if a thread reaches for the core worker, be it to drop a reference, while that is being taken down.
    """
    DISCONNECT.find()()
    core_worker = vars(GLOBAL_WORKER.find()).pop("core_worker", None)
    if core_worker is not None:
        core_worker.shutdown_driver()
    ray.shutdown()


def silence_worker_logs() -> None:
    _replace(PRINT_WORKER_LOG, lambda *_, **__: None)


def allow_auto_connect(*, allowed: bool) -> None:
    _replace(AUTO_CONNECT, allowed and os.environ.get("RAY_ENABLE_AUTO_CONNECT") != "0")


@contextlib.contextmanager
def as_our_own() -> Iterator[None]:
    """Start a Ray without what we do not use, and out of reach of the signals that are meant for the group of this process."""
    die_with_starter = DIE_WITH_STARTER.find()

    def stand_apart() -> None:  # in the new process
        os.setsid()
        die_with_starter()

    with contextlib.ExitStack() as stack:
        for internal in (*UNUSED, DIE_WITH_STARTER):
            stack.callback(_replace, internal, internal.find())
            _replace(internal, stand_apart if internal is DIE_WITH_STARTER else lambda *_, **__: None)
        yield


# Without a folder at its top: of packages that Ray has itself it strips none. Returns its URI.
def upload_package(name: str, contents: Mapping[str, bytes]) -> str:
    body = io.BytesIO()
    with zipfile.ZipFile(body, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in contents.items():
            archive.writestr(path, content)
    uri = f"gcs://_ray_pkg_{name}.zip"
    UPLOAD.find()(uri, body.getvalue())
    return uri


def _replace(internal: Internal, value: bool | Callable[..., None]) -> None:
    *owners, name = internal.path.split(".")
    setattr(functools.reduce(getattr, owners, importlib.import_module(internal.module)), name, value)
