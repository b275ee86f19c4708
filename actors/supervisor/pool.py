"""The hosts: started ahead of demand, watched for death, ended when they are beyond help, retired when they are worn.

The pool sees hosts and reports what it sees as stimuli; whom a host's death concerns is decided by the ledger.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable

from perdure.actors.events.observability import Channel, EventType
from perdure.actors.link.messages import Plain, Retire
from perdure.actors.ports import Fleet, PoolSpec, World
from perdure.actors.supervisor.heartbeat import Heartbeat
from perdure.actors.supervisor.publisher import Publisher
from perdure.actors.supervisor.sessions import Sessions
from perdure.actors.tasks import Tasks
from perdure.ledger import (
    HostLost,
    HostUnavailable,
    HostView,
    Stimulus,
    View,
    hosts_wanted,
    is_exclusive,
    pool_key,
    with_package,
)
from perdure.policies import Limits, backoff_ms, spare_hosts

COMING_MAX = 2
log = logging.getLogger("perdure.supervisor")


def spec_of(plain: Plain) -> PoolSpec:
    """What to ask of Ray, from the plain form `[num_cpus, [[resource, amount], …], runtime_env, …]`."""
    if plain is None:
        return PoolSpec()
    num_cpus, resources, runtime_env = plain[:3]
    return PoolSpec(num_cpus, tuple((name, amount) for name, amount in resources), runtime_env)


class Pool:
    """All hosts of one supervisor life."""

    def __init__(
        self,
        world: World,
        tasks: Tasks,
        fleet: Fleet,
        view: View,
        sessions: Sessions,
        limits: Limits,
        report: Callable[[Stimulus], None],
        publisher: Publisher,
    ) -> None:
        self._world, self._tasks, self._fleet, self._view, self._limits = world, tasks, fleet, view, limits
        self._sessions, self._report, self._publisher = sessions, report, publisher
        self.heartbeat = Heartbeat(tasks, fleet, view, sessions, limits, publisher, self._end)
        self._failures: Counter[str] = Counter()
        self._not_before_s: dict[str, float] = {}
        self._idle_since_s: dict[str, float] = {}
        self._ended: dict[str, str] = {}  # why we ended a host

    async def adopt(self) -> None:
        """Take over the hosts that an earlier life left; what was placed on any other host is lost."""
        survivors = await self._fleet.survivors()
        for activation in self._view.agents.values():
            if activation.host_id:
                host = self._view.hosts.setdefault(activation.host_id, HostView(activation.host_id, None))
                host.tenants[activation.agent_id] = None
                host.load += 0 if self._view.awaiting.get(activation.agent_id) else 1
        for host_id, spec in survivors.items():
            plain = (
                None
                if spec == PoolSpec()
                else [spec.num_cpus, [list(pair) for pair in spec.resources], spec.runtime_env]
            )
            self._view.hosts.setdefault(host_id, HostView(host_id, plain)).spec = plain
            self._tasks.start(self._watch(host_id))
        for host_id, host in self._view.hosts.items():
            host.exclusive = is_exclusive(self._view, host, self._limits)
            if host_id not in survivors:
                self._lost(host_id, "it did not survive the supervisor")

    def ensure(self) -> None:
        """Start the hosts that are wanted now, a few at a time. A pool whose hosts do not come up is tried ever more seldom."""
        now_s = asyncio.get_running_loop().time()
        coming = sum(not host.up for host in self._view.hosts.values())
        for spec in hosts_wanted(self._view, self._limits, warm=self._sessions.are_attended):
            if coming >= COMING_MAX:
                return
            if now_s < self._not_before_s.get(pool_key(spec), 0.0):
                continue
            coming += 1
            host_id = self._world.dice.token()[:12]
            self._view.hosts[host_id] = HostView(host_id, spec)
            told = {"host_id": host_id, "pool": pool_key(spec)}
            self._publisher.happened(Channel.SUPERVISOR, EventType.SUPERVISOR_HOST_SPAWNED, "", told)
            self._tasks.start(self._start(host_id, spec))

    async def _start(self, host_id: str, spec: Plain) -> None:
        try:
            await self._fleet.spawn(host_id, spec_of(spec))
        except HostUnavailable as problem:
            self._failed(pool_key(spec))
            self._lost(host_id, str(problem))
            return
        await self._watch(host_id)

    def _failed(self, key: str) -> None:
        self._failures[key] += 1
        pause_ms = backoff_ms(self._failures[key], self._limits.retry_first_ms, self._limits.retry_most_ms)
        self._not_before_s[key] = asyncio.get_running_loop().time() + pause_ms / 1000

    async def _watch(self, host_id: str) -> None:
        cause = await self._fleet.death(host_id)
        host = self._view.hosts.get(host_id)
        if host is not None and host.up:
            self._failures.pop(pool_key(host.spec), None)
        elif host is not None:
            self._failed(pool_key(host.spec))
        self._sessions.drop(host_id)
        self._lost(host_id, self._ended.pop(host_id, cause))

    async def _end(self, host_id: str, cause: str) -> None:
        """Kill a host, and tell this cause when it is seen to be dead."""
        self._ended[host_id] = cause
        await self._fleet.kill(host_id)

    def _lost(self, host_id: str, cause: str) -> None:
        host = self._view.hosts.get(host_id)
        tenants = list(host.tenants) if host is not None else []
        about = {"host_id": host_id, "about": tenants}
        log.log(logging.WARNING if tenants else logging.INFO, "host %s has ended: %s", host_id, cause, extra=about)
        told = {"host_id": host_id, "tenants": len(tenants), "cause": cause}
        self._publisher.happened(Channel.SUPERVISOR, EventType.SUPERVISOR_HOST_LOST, "", told)
        self._report(HostLost(host_id, cause))

    def retire_worn(self) -> None:
        """Ask an empty host to leave when it has served too many agents, holds too much memory, or has been empty for long.

        Of the pool that is kept warm the last is only for those beyond its number. Others come and go with the code that they serve.
        """
        now_s, key = asyncio.get_running_loop().time(), pool_key(with_package(None, self._view.code.warm))
        warm = [host for host in self._view.hosts.values() if pool_key(host.spec) == key]
        idle = [host.host_id for host in spare_hosts(warm, self._limits)]
        idle += [host.host_id for host in self._view.hosts.values() if pool_key(host.spec) != key and not host.tenants]
        self._idle_since_s = {host_id: self._idle_since_s.get(host_id, now_s) for host_id in idle}
        for host in self._view.hosts.values():
            worn = host.worn or host.tenancies >= self._limits.tenancies_max or host.rss_mb >= self._limits.rss_mb_max
            worn |= now_s - self._idle_since_s.get(host.host_id, now_s) >= self._limits.host_idle_ms / 1000
            session = self._sessions.by_peer.get(host.host_id)
            if worn and host.up and not host.draining and not host.tenants and session is not None:
                host.draining = True
                session.say(Retire())
