"""Idle processes that are kept, so that the next supervisor or host begins in 0.1 s instead of 0.6 s, and has imported its code.

Ray starts a process for a waiting task, and keeps it if the task is cancelled meanwhile. A process that has run a task cannot become an
actor, so it is killed. In a cluster that we joined, our processes have an environment of their own, by which Ray and we tell them from
others; they import ahead what those of a Ray of our own do (`PRELOADED`).

How long an idle process lives is for Ray to say: beyond one for each CPU of a node it ends those that are idle for a second. Where ours do
not last, they are started ever less often.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from typing import Final

import ray
from ray.exceptions import RayError

from perdure.actors.ray_world.cluster_record import PRELOADED, QUICK
from perdure.actors.ray_world.named_actors import remote
from perdure.actors.ray_world.os_processes import (
    ProcessId,
    ProcessInfo,
    children,
    parent_process,
    this_process_info,
    value_in,
)
from perdure.actors.ray_world.os_processes import kill as kill_processes
from perdure.actors.ray_world.ray_internals import IDLE_WORKER, SETUP_HOOK
from perdure.policies import NODE_ID

PLAIN: Final = {"env_vars": {SETUP_HOOK: ""}}  # the environment of a task that is not to use up a spare process
START_S = 0.1  # until Ray has begun to start a process
PAUSE_S: Final = 10.0  # until one that did not last is started again, for the first time
PAUSE_MAX_S: Final = 1_000.0


# What Ray calls in a process of ours, before it gives it work.
def preload() -> None:
    for module in PRELOADED:
        with contextlib.suppress(ImportError):  # whoever needs it is told
            importlib.import_module(module)


# Of our processes in a cluster that was joined. A hook of the program's own stays.
def prepared_environment() -> dict[str, dict[str, str]]:
    hooked = SETUP_HOOK in ray.get_runtime_context().runtime_env.get("env_vars", {})
    hook = {} if hooked else {SETUP_HOOK: f"{preload.__module__}.{preload.__name__}"}
    return {"env_vars": {**QUICK, **hook}}


class Spare:
    """The idle process of this process's node.

    Args:
        own: this Ray is our own.
    """

    def __init__(self, *, own: bool) -> None:
        self._own = own
        self._not_before_s, self._pause_s = 0.0, PAUSE_S

    # With `again` it is only looked after, and was not used by us.
    async def keep(self, *, again: bool) -> None:
        raylet = parent_process()
        if raylet is None or (self._own and again):  # nobody else uses those of a Ray of our own
            return
        if await asyncio.to_thread(self._idle, raylet):
            self._pause_s = PAUSE_S
            return
        now_s = time.monotonic()
        if again and now_s < self._not_before_s:
            return
        self._not_before_s = now_s + self._pause_s
        self._pause_s = min(PAUSE_MAX_S, 2 * self._pause_s) if again else PAUSE_S
        here = {NODE_ID: ray.get_runtime_context().get_node_id()}
        task = remote(this_process_info, num_cpus=0, max_retries=0, enable_task_events=False)
        waiting = task.options(label_selector=here).remote()
        await asyncio.sleep(START_S)
        ray.cancel(waiting)
        with contextlib.suppress(RayError):
            kill_processes(ProcessInfo(*(await waiting)).here)

    def _idle(self, raylet: ProcessId) -> list[ProcessId]:
        idle = children(raylet, IDLE_WORKER)
        return [each for each in idle if self._own or value_in(each, SETUP_HOOK).startswith(preload.__module__)]
