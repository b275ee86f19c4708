"""The heartbeat: which hosts are silent, why, and which of them must be ended for it (`policies.liveness`).

A host that has spoken since the last look is well. Any other is asked for its pulse, which is told beside its event loop. So a host that is
merely slow is never ended, and one whose loop is blocked is known with the agent that blocks it. The supervisor watches itself in the same
way: when it was late, nobody else's silence until then counts, neither of hosts nor of children (`View.awake_at_ms`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from perdure.actors.events.observability import Channel, EventType
from perdure.actors.link.messages import Ping
from perdure.actors.ports import Fleet, Pulse
from perdure.actors.supervisor.publisher import Publisher
from perdure.actors.supervisor.sessions import Sessions
from perdure.actors.tasks import Pending, Tasks
from perdure.ledger import HostView, View
from perdure.policies import (
    COMING,
    MUTE,
    Limits,
    Silence,
    is_noteworthy,
    is_unbearable,
    silence_after,
    was_late,
)

log = logging.getLogger("perdure.supervisor")


class Heartbeat:
    """The looks at the hosts of one supervisor life.

    Args:
        end: kills a host, and tells why it is lost.
    """

    def __init__(
        self,
        tasks: Tasks,
        fleet: Fleet,
        view: View,
        sessions: Sessions,
        limits: Limits,
        publisher: Publisher,
        end: Callable[[str, str], Pending[None]],
    ) -> None:
        self._tasks, self._fleet, self._end = tasks, fleet, end
        self._view, self._sessions, self._limits, self._publisher = view, sessions, limits, publisher
        self._silences: dict[str, Silence] = {}
        self._told = ("", 0)  # the host and the piece of work that was told last
        self._forgiven = 0
        self._due_s = math.inf  # when the loop must have come round again

    async def serve(self) -> None:
        """Look at all hosts, again and again."""
        loop = asyncio.get_running_loop()
        period_s = self._limits.heartbeat_ms / 1000
        while True:
            looked_s = loop.time()
            self._due_s = looked_s + period_s
            await asyncio.sleep(period_s)
            self.notice_lateness()
            for session in self._sessions.by_peer.values():
                if session.is_host:
                    session.say(Ping())
            self._sessions.flush()
            await self._look(looked_s)

    def notice_lateness(self) -> None:
        """Find out whether the loop of the supervisor itself stood still until now."""
        now_s = asyncio.get_running_loop().time()
        late_ms = (now_s - self._due_s) * 1000
        if self.lost(late_ms):
            self._due_s = now_s

    def lost(self, late_ms: float) -> bool:
        """The supervisor lost this time, to its loop or to the disk. Whether that is so much that nobody's silence until now counts."""
        if not was_late(late_ms, self._limits):
            return False
        log.info("the supervisor was %.1f s late; nobody's silence until now counts", late_ms / 1000)
        self._forgiven += 1
        self._silences.clear()
        self._view.awake_at_ms = self._publisher.now_ms()
        return True

    async def _look(self, since_s: float) -> None:
        silent = []
        for host in self._view.hosts.values():
            session = self._sessions.by_peer.get(host.host_id)
            if session is not None and session.seen_s >= since_s:
                self._is_well(host)
            else:
                silent.append(host)
        forgiven, period_s = self._forgiven, self._limits.heartbeat_ms / 1000
        self._due_s = asyncio.get_running_loop().time() + period_s
        pulses = await asyncio.gather(*(self._pulse(host, period_s) for host in silent))
        self.notice_lateness()
        if self._forgiven == forgiven:
            for host, pulse in zip(silent, pulses, strict=True):
                self._judge(host, pulse)

    async def _pulse(self, host: HostView, timeout_s: float) -> Pulse | None:
        try:
            async with asyncio.timeout(timeout_s):
                return await self._fleet.pulse(host.host_id)
        except TimeoutError:
            return None

    def _is_well(self, host: HostView) -> None:
        self._silences.pop(host.host_id, None)
        host.blocked = ""

    def _judge(self, host: HostView, pulse: Pulse | None) -> None:
        """Hold one more look against a silent host, unless its event loop turns."""
        if pulse is not None and not pulse.step:
            self._is_well(host)
            return
        sign = str(pulse.step) if pulse is not None else MUTE if host.up else COMING
        silence = self._silences[host.host_id] = silence_after(self._silences.get(host.host_id), sign)
        host.late_at_ms = self._publisher.now_ms()
        if pulse is not None:
            self._blocked(host, pulse, silence)
        if is_unbearable(silence, self._limits):
            self._tasks.start(self._end(host.host_id, _cause(host, silence, self._limits)))

    def _blocked(self, host: HostView, pulse: Pulse, silence: Silence) -> None:
        """Tell once of each piece of work that blocks a loop for long; its agent is placed alone from now on."""
        where = f"{pulse.method} of {pulse.agent}" if pulse.agent else pulse.method
        host.room = 0
        host.blocked = f"its event loop stands in {where}"
        if not is_noteworthy(silence, self._limits) or self._told == (host.host_id, pulse.step):
            return
        self._told = host.host_id, pulse.step
        if pulse.agent:
            self._view.blocks(pulse.agent)
        about = {"host_id": host.host_id, "about": [pulse.agent]}
        log.warning("host %s: %s\n%s", host.host_id, host.blocked, pulse.stack, extra=about)
        told = {"host_id": host.host_id, "method": pulse.method, "stack": pulse.stack}
        self._publisher.happened(Channel.SUPERVISOR, EventType.SUPERVISOR_HOST_BLOCKED, pulse.agent, told)


def _cause(host: HostView, silence: Silence, limits: Limits) -> str:
    """Why a host is ended, for whoever asks what became of its agents."""
    if silence.sign == COMING:
        return "it did not come up"
    if silence.sign == MUTE:
        return f"it neither answered nor computed at {silence.looks} heartbeats in a row"
    return f"{host.blocked}, and had not turned for {limits.blocked_max_ms} ms"
