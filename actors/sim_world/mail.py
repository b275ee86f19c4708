"""The wire between couriers and the supervisor, with its weather.

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

from perdure.actors.sim_world.ports import KillPlan
from perdure.actors.sim_world.process import Nature, Process
from perdure.actors.sim_world.weather import Weather
from perdure.ledger import PerdureError, SupervisorUnreachable

Exchange = Callable[[bytes], Coroutine[object, None, bytes]]


class _Call:
    """One exchange under way."""

    def __init__(self, number: int, caller: Process, frame: bytes) -> None:
        self.number = number
        self.caller = caller
        self.frame = frame
        self.answer: asyncio.Future[bytes] = caller.nature.loop.create_future()


class Wire:
    """Carries all exchanges of a simulation."""

    def __init__(self, nature: Nature, plan: KillPlan, stand_still: Callable[[float], None]) -> None:
        self._nature = nature
        self._plan = plan
        self._stand_still = stand_still
        self._supervisor: Process | None = None
        self._exchange: Exchange | None = None
        self._held: dict[int, _Call] = {}
        self._count = 0

    def connect(self, supervisor: Process, exchange: Exchange) -> None:
        """A supervisor life has begun to listen."""
        self._supervisor = supervisor
        self._exchange = exchange

    def disconnect(self, supervisor: Process) -> None:
        """A supervisor life is over: whoever waits for it hears so."""
        if self._supervisor is not supervisor:
            return
        self._supervisor = self._exchange = None
        held, self._held = self._held, {}
        for call in held.values():
            self._fail(call, "the supervisor died", self._nature.draw_ms(self._nature.weather.death_seen_ms))

    def post(self, caller: Process, frame: bytes) -> asyncio.Future[bytes]:
        """Send a call; the future is the caller's answer."""
        self._count += 1
        call = _Call(self._count, caller, frame)
        nature, weather = self._nature, self._nature.weather
        self._strike(caller)
        nature.note(caller.name, f"call {call.number} posted {_brief(frame)}")
        if nature.chance(weather.doubled):
            nature.note(caller.name, f"call {call.number} doubled")
            nature.later(self._travel_ms(), partial(self._arrive, call, echo=True))
        if caller.is_cut() or nature.chance(weather.lost):
            self._lose(call, "call")
        else:
            nature.later(self._travel_ms(), partial(self._arrive, call, echo=False))
        return call.answer

    def _strike(self, caller: Process) -> None:
        """The weather of processes, drawn once an exchange."""
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
        if self._supervisor is not None and nature.chance(weather.supervisor_dies):
            nature.later(nature.draw_ms(weather.sudden_ms), self._die, self._supervisor, weather)

    def _die(self, process: Process, weather: Weather) -> None:
        if self._nature.weather is weather:  # not if the world has healed meanwhile
            self._plan.strike(process, "killed by the weather")

    def _travel_ms(self) -> float:
        nature, weather = self._nature, self._nature.weather
        late_ms = nature.draw_ms(weather.late_ms) if nature.chance(weather.late) else 0.0
        return nature.draw_ms(weather.mail_ms) + late_ms

    def _arrive(self, call: _Call, *, echo: bool) -> None:
        if call.caller.is_cut():
            self._lose(call, "call", echo=echo)
        elif self._supervisor is None or self._exchange is None:
            after_ms = self._nature.draw_ms(self._nature.weather.death_seen_ms)
            self._fail(call, "there is no supervisor", after_ms, echo=echo)
        else:
            self._nature.note(self._supervisor.name, f"call {call.number} arrives" + (" again" if echo else ""))
            if not echo:
                self._held[call.number] = call
            answered = partial(self._answered, call, self._supervisor, echo=echo)
            self._supervisor.start(self._exchange(call.frame), on_done=answered)

    def _answered(self, call: _Call, supervisor: Process, task: asyncio.Task[bytes], *, echo: bool) -> None:
        nature = self._nature
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, PerdureError):
            nature.blame(supervisor.name, "exchange() raised", error)
        if echo or self._held.pop(call.number, None) is None:
            return
        if task.cancelled():
            self._fail(call, "the supervisor dropped the call", self._travel_ms())
        elif call.caller.is_cut() or nature.chance(nature.weather.lost):
            self._lose(call, "reply")
        elif error is None:
            nature.later(self._travel_ms(), self._hear, call, task.result())
        elif isinstance(error, PerdureError):
            nature.later(self._travel_ms(), self._refuse, call, error)
        else:
            self._fail(call, "the supervisor failed", self._travel_ms())

    def _hear(self, call: _Call, reply: bytes) -> None:
        if call.answer.done():
            return
        if call.caller.is_cut():
            self._lose(call, "reply")
            return
        self._nature.note(call.caller.name, f"call {call.number} answered {_brief(reply)}")
        call.answer.set_result(reply)

    def _lose(self, call: _Call, what: str, *, echo: bool = False) -> None:
        self._nature.note(call.caller.name, f"{what} {call.number} lost")
        self._fail(call, f"the {what} was lost", self._nature.draw_ms(self._nature.weather.lost_noticed_ms), echo=echo)

    def _fail(self, call: _Call, why: str, after_ms: float, *, echo: bool = False) -> None:
        """The caller hears that nothing is known; for an echo there is nobody to hear."""
        if not echo:
            self._nature.later(after_ms, self._refuse, call, SupervisorUnreachable(why))

    def _refuse(self, call: _Call, error: PerdureError) -> None:
        if call.answer.done():
            return
        self._nature.note(call.caller.name, f"call {call.number} failed: {error}")
        call.answer.set_exception(error)
        call.answer.exception()  # the caller may be dead before it is told; that is no mistake of anybody's


class SimCourier:
    """A host's or client's way to the supervisor."""

    def __init__(self, process: Process, wire: Wire) -> None:
        self._process = process
        self._wire = wire

    async def exchange(self, frame: bytes) -> bytes:
        """Hand over a frame and wait for the answer."""
        self._process.check()
        return await self._wire.post(self._process, frame)


def _brief(frame: bytes) -> str:
    """Enough of a frame for the digest to notice any difference in it."""
    return f"{len(frame)} bytes {zlib.crc32(frame):08x}"
