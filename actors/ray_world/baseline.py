"""Plain Ray, with nothing durable: what Perdure's figures are compared with, measured in the same run on the same cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

import ray
from ray.exceptions import RayError

from perdure.actors.ray_world.named_actors import Remote
from perdure.actors.ray_world.os_processes import ProcessId, kill, this_process


class Echo:
    async def echo(self, payload: bytes) -> bytes:
        return payload

    async def process(self) -> ProcessId:
        return this_process()


class PlainRay:
    """Actors of the Ray that this process is connected to, called without a ledger behind them."""

    def __init__(self) -> None:
        self._actor = _echo()
        ray.get(self._actor.process.remote())

    def round_trips_ms(self, payload: bytes, count: int) -> list[float]:
        times: list[float] = []
        for _ in range(count):
            begun_s = time.perf_counter()
            ray.get(self._actor.echo.remote(payload))
            times.append((time.perf_counter() - begun_s) * 1000)
        return times

    def calls_per_second(self, payload: bytes, count: int) -> float:
        begun_s = time.perf_counter()
        ray.get([self._actor.echo.remote(payload) for _ in range(count)])
        return count / (time.perf_counter() - begun_s)

    # How many a second, and the numbers of their processes, which live meanwhile.
    @contextmanager
    def one_actor_each(self, payload: bytes, count: int) -> Iterator[tuple[float, list[int]]]:
        begun_s = time.perf_counter()
        actors = [_echo() for _ in range(count)]
        try:
            ray.get([actor.echo.remote(payload) for actor in actors])
            rate = count / (time.perf_counter() - begun_s)
            yield rate, [process.pid for process in ray.get([actor.process.remote() for actor in actors])]
        finally:
            for actor in actors:
                ray.kill(actor)

    # From the `SIGKILL` of an actor until Ray has made it anew and it answers. What it was doing is lost.
    def restart_ms(self) -> float:
        actor = _echo(max_restarts=-1)
        victim: ProcessId = ray.get(actor.process.remote())
        begun_s = time.perf_counter()
        kill([victim])
        while not self._is_another(actor, victim):
            time.sleep(0.002)
        took_ms = (time.perf_counter() - begun_s) * 1000
        ray.kill(actor)
        return took_ms

    @staticmethod
    def _is_another(actor: Remote, victim: ProcessId) -> bool:
        try:
            return bool(ray.get(actor.process.remote()) != victim)
        except RayError:
            return False

    def close(self) -> None:
        ray.kill(self._actor)


def _echo(**options: object) -> Remote:
    return cast("Remote", ray).remote(num_cpus=0, max_concurrency=1000, **options)(Echo).remote()
