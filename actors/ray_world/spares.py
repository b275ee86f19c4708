"""Idle processes that are kept, so that the next supervisor or host begins in 0.1 s instead of 0.6 s, and has imported its code.

Each belongs to no job, so it outlives the program that has begun its supervisor. In a cluster that we joined, our processes have an
environment of their own, by which Ray and we tell them from others. They import ahead what those of a Ray of our own do (`PRELOADED`),
unless the program has a hook of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import threading
import time
from typing import Final

import ray

from perdure.actors.ray_world.cluster_record import PRELOADED, QUICK
from perdure.actors.ray_world.os_processes import ProcessId, children, parent_process, value_in
from perdure.actors.ray_world.os_processes import kill as kill_processes
from perdure.actors.ray_world.ray_internals import IDLE_WORKER, SETUP_HOOK, start_idle

PLAIN: Final = {"env_vars": {SETUP_HOOK: ""}}  # the environment of a task that is not to use up a spare process
START_S: Final = 5.0  # for Ray to start a process
LOOK_S: Final = 0.2
AGAIN_S: Final = 600.0  # until Ray is asked again after it has refused one
KEPT_S: Final = 3_600  # Ray ends it then, and another one is started


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
    """The idle process of this process's node, in the supervisor's environment."""

    def __init__(self, *, own: bool) -> None:
        self._own = own
        self._keeping = threading.Lock()
        self._is_over, self._not_before_s = False, 0.0

    async def keep(self, environment: str) -> None:
        await asyncio.to_thread(self._keep, environment)

    # Until it is idle it cannot be told from one that begins with work: then another one would be asked for.
    def _keep(self, environment: str) -> None:
        with self._keeping:
            if self._is_over or time.monotonic() < self._not_before_s or self._idle():
                return
            self._not_before_s = time.monotonic() + AGAIN_S
            start_idle(environment, KEPT_S)
            self._not_before_s = 0.0
            end_s = time.monotonic() + START_S
            while not self._idle() and time.monotonic() < end_s:
                time.sleep(LOOK_S)

    # In a Ray of our own it ends with that. Where other directories are served, another one is started for them. One that has not begun yet
    # is waited for: a starting process may be a host of theirs, and if it is killed Ray misses it for a minute.
    async def end(self) -> None:
        self._is_over = True
        if not self._own:
            await asyncio.to_thread(self._end)

    def _end(self) -> None:
        with self._keeping:
            kill_processes(self._idle())

    def _idle(self) -> list[ProcessId]:
        raylet = parent_process()
        found = children(raylet, IDLE_WORKER) if raylet is not None else []
        marks = {} if self._own else {**QUICK, SETUP_HOOK: os.environ.get(SETUP_HOOK, "")}
        return [each for each in found if all(value_in(each, name) == value for name, value in marks.items())]
