"""The wire between peers, the supervisor and hosts, with its weather.

An exchange is a call and a reply, each of them a message that can be lost, late or overtaken; a call can arrive
twice. Its caller hears exactly one of: the reply, or `SupervisorUnreachable`, which says only that nothing is known.

    posted ──lost, cut off───────────────► unreachable, after `lost_noticed_ms`
      └─► arrives ──no supervisor────────► unreachable, after `death_seen_ms`
            └─► held ──supervisor dies───► unreachable, after `death_seen_ms`
                  └─► reply ──lost, cut──► unreachable, after `lost_noticed_ms`
                        └─► heard

A message that has left outlives its sender: calls of a dead host still arrive, replies of a dead supervisor are still
heard. What `exchange` raises reaches the caller if it is a `PerdureError`, as it would through Ray; anything else is
an error.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Final

from perdure.actors.sim_world.process import SimContext, SimProcess
from perdure.actors.sim_world.sim_ports import KillPlan
from perdure.actors.sim_world.weather import Weather
from perdure.ledger import HostUnavailable, PerdureError, SupervisorUnreachable

SUPERVISOR: Final = "supervisor"
HOST: Final = "host"
Exchange = Callable[[bytes], Coroutine[object, None, bytes]]


class _Call:
    def __init__(self, number: int, caller: SimProcess, to: str, frame: bytes) -> None:
        self.number = number
        self.caller = caller
        self.to = to
        self.frame = frame
        self.answer: asyncio.Future[bytes] = caller.nature.loop.create_future()


class ExchangeWire:
    """Carries all exchanges of a simulation."""

    def __init__(self, nature: SimContext, plan: KillPlan, stand_still: Callable[[float], None]) -> None:
        self._nature = nature
        self._plan = plan
        self._stand_still = stand_still
        self._listeners: dict[str, tuple[SimProcess, Exchange]] = {}
        self._held: dict[int, _Call] = {}
        self._count = 0

    def connect(self, listener: SimProcess, exchange: Exchange) -> None:
        self._listeners[listener.name] = listener, exchange

    def disconnect(self, listener: SimProcess) -> None:
        if listener not in self._listeners.get(listener.name, ()):
            return
        del self._listeners[listener.name]
        for call in [call for call in self._held.values() if call.to == listener.name]:
            del self._held[call.number]
            self._fail(call, f"the {listener.kind} died", self._nature.draw_ms(self._nature.weather.death_seen_ms))

    # Send a call to the supervisor, or to a host; the future is the caller's answer.
    def post(self, caller: SimProcess, to: str, frame: bytes) -> asyncio.Future[bytes]:
        self._count += 1
        call = _Call(self._count, caller, to, frame)
        nature, weather = self._nature, self._nature.weather
        if to == SUPERVISOR:
            self._strike(caller)
        nature.note(caller.name, f"call {call.number} posted {self._brief(frame)}")
        if nature.chance(weather.doubled):
            nature.note(caller.name, f"call {call.number} doubled")
            nature.later(self._travel_ms(), partial(self._arrive, call, echo=True))
        if caller.is_cut() or nature.chance(weather.lost):
            self._lose(call, "call")
        else:
            nature.later(self._travel_ms(), partial(self._arrive, call, echo=False))
        return call.answer

    # Drawn once an exchange.
    def _strike(self, caller: SimProcess) -> None:
        nature, weather = self._nature, self._nature.weather
        if caller.kind == "host":
            if nature.chance(weather.partitioned):
                caller.partition(nature.draw_ms(weather.partition_ms))
            if nature.chance(weather.hung):
                caller.hang(nature.draw_ms(weather.hang_ms))
            if nature.chance(weather.slow):
                caller.hang(nature.draw_ms(weather.slow_ms), culprit=None)
            if nature.chance(weather.stopped):
                self._stand_still(nature.draw_ms(weather.stop_ms))
            if nature.chance(weather.host_dies):
                nature.later(nature.draw_ms(weather.sudden_ms), self._die, caller, weather)
        if SUPERVISOR in self._listeners and nature.chance(weather.supervisor_dies):
            nature.later(nature.draw_ms(weather.sudden_ms), self._die, self._listeners[SUPERVISOR][0], weather)

    def _die(self, process: SimProcess, weather: Weather) -> None:
        if self._nature.weather is weather:  # not if the world has healed meanwhile
            self._plan.strike(process, "killed by the weather")

    def _travel_ms(self) -> float:
        nature, weather = self._nature, self._nature.weather
        late_ms = nature.draw_ms(weather.late_ms) if nature.chance(weather.late) else 0.0
        return nature.draw_ms(weather.mail_ms) + late_ms

    def _arrive(self, call: _Call, *, echo: bool) -> None:
        listener, exchange = self._listeners.get(call.to, (None, None))
        if self._is_cut(call):
            self._lose(call, "call", echo=echo)
        elif listener is None or exchange is None:
            after_ms = self._nature.draw_ms(self._nature.weather.death_seen_ms)
            self._fail(call, f"there is no {call.to}", after_ms, echo=echo)
        else:
            self._nature.note(listener.name, f"call {call.number} arrives" + (" again" if echo else ""))
            if not echo:
                self._held[call.number] = call
            listener.start(exchange(call.frame), on_done=partial(self._answered, call, listener, echo=echo))

    def _is_cut(self, call: _Call) -> bool:
        listener, _ = self._listeners.get(call.to, (None, None))
        return call.caller.is_cut() or (listener is not None and listener.is_cut())

    def _answered(self, call: _Call, listener: SimProcess, task: asyncio.Task[bytes], *, echo: bool) -> None:
        nature = self._nature
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PerdureError):
            nature.blame(listener.name, "exchange() raised", error)
        if echo or self._held.pop(call.number, None) is None:
            return
        if task.cancelled():
            self._fail(call, f"the {listener.kind} dropped the call", self._travel_ms())
        elif self._is_cut(call) or nature.chance(nature.weather.lost):
            self._lose(call, "reply")
        elif error is None:
            nature.later(self._travel_ms(), self._hear, call, task.result())
        elif isinstance(error, PerdureError):
            nature.later(self._travel_ms(), self._refuse, call, error)
        else:
            self._fail(call, f"the {listener.kind} failed", self._travel_ms())

    def _hear(self, call: _Call, reply: bytes) -> None:
        if call.answer.done():
            return
        if self._is_cut(call):
            self._lose(call, "reply")
            return
        self._nature.note(call.caller.name, f"call {call.number} answered {self._brief(reply)}")
        call.answer.set_result(reply)

    def _lose(self, call: _Call, what: str, *, echo: bool = False) -> None:
        self._nature.note(call.caller.name, f"{what} {call.number} lost")
        self._fail(call, f"the {what} was lost", self._nature.draw_ms(self._nature.weather.lost_noticed_ms), echo=echo)

    # The caller hears that nothing is known. An echo has no caller.
    def _fail(self, call: _Call, why: str, after_ms: float, *, echo: bool = False) -> None:
        if not echo:
            self._nature.later(after_ms, self._refuse, call, SupervisorUnreachable(why))

    def _refuse(self, call: _Call, error: PerdureError) -> None:
        if call.answer.done():
            return
        self._nature.note(call.caller.name, f"call {call.number} failed: {error}")
        call.answer.set_exception(error)
        call.answer.exception()  # the caller may be dead by then, which is no mistake

    # Enough of a frame for the digest to notice any difference in it. In files of DuckDB are bytes of chance, so they shrink by chance too.
    def _brief(self, frame: bytes) -> str:
        return "" if self._nature.has_files else f"{len(frame)} bytes {zlib.crc32(frame):08x}"


class SimTransport:
    def __init__(self, process: SimProcess, wire: ExchangeWire) -> None:
        self._process = process
        self._wire = wire
        self.route = process.name if process.kind == HOST else ""

    async def exchange(self, frame: bytes) -> bytes:
        self._process.check()
        return await self._wire.post(self._process, SUPERVISOR, frame)

    async def look(self, route: str, frame: bytes) -> bytes:
        self._process.check()
        try:
            return await self._wire.post(self._process, route, frame)
        except SupervisorUnreachable as lost:
            raise HostUnavailable(str(lost)) from lost
