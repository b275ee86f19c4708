"""The bucket of the simulated world: objects that outlive every process, and each life's way to them, with its weather.

Between `Bucket`, which repeats what had no answer, and the objects there is the network:

    asked ──cut off, lost───────────► silence, after `bucket_silent_ms`
      ├────busy (503, 409)──────────► said at once
      ├────late─────────────────────► silence; it takes effect up to `bucket_late_ms` later
      └─► arrives, once the store stands still no more, and takes effect
            └─► answer ──lost───────► silence
                  └─► heard

A copy of a create may arrive late besides, because `Bucket` sends what is slow a second time. What has left outlives its sender: it takes
effect after the sender's death, and after the fence of the next life. Objects that are read together are read at different times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, cast

from perdure.actors.ports import KillPoint, World
from perdure.actors.sim_world.process import Wake, current_process, current_strand
from perdure.actors.sim_world.sim_ports import SimThreads
from perdure.actors.sim_world.virtual_loop import Outcome
from perdure.actors.sim_world.weather import Span, Weather
from perdure.actors.tasks import Killed
from perdure.ledger.slots import ROOTS, Answer, Create, Delete, Get, Names, Newest, NoReply, Request
from perdure.ledger.store.bucket import Bucket

T = TypeVar("T")

URL: Final = "memory:///simulated"


# Until when something is out of order, as long as the weather lasts.
class Outage(NamedTuple):
    weather: Weather
    until_s: float


class SimObjects:
    """What lies in the bucket.

    Attributes:
        overwrites: whether a create takes effect where an object is.
        standstill: nothing arrives until its end.
    """

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.overwrites = False
        self.standstill: Outage | None = None
        self._listed: dict[str, str] = {}

    # At once. A list that is stale is an earlier one.
    def do(self, request: Request, *, is_stale: bool = False) -> Answer:
        match request:
            case Create(key, body):
                is_new = key not in self.held
                if is_new or self.overwrites:
                    self.held[key] = body
                return is_new or self.overwrites
            case Get(keys):
                return [self.held.get(key) for key in keys]
            case Newest(prefix):
                if not is_stale:
                    self._listed[prefix] = max((key for key in self.held if key.startswith(prefix)), default="")
                return self._listed.get(prefix, "")
            case Names(prefix, last):
                return [key for key in self.held if key.startswith(prefix) and key <= last]
            case Delete(keys):
                for key in keys:
                    self.held.pop(key, None)
                return None


# A way to the objects without any weather, for those who look from outside of the simulated world.
class CalmBucket(Bucket):
    def __init__(self, objects: SimObjects, **clock: Any) -> None:
        super().__init__(URL, **clock)
        self.objects = objects

    def at_once(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        return [job() for job in jobs]

    def _answer(self, request: Request) -> Answer:
        return self.objects.do(request)


class SimBucket(CalmBucket):
    """The way of one life to the objects. It is made in the process whose it is, and works on that process's threads."""

    def __init__(self, objects: SimObjects, world: World) -> None:
        process = current_process()
        assert process is not None, "a simulated bucket is for a simulated process"
        assert isinstance(world.threads, SimThreads), "a bucket waits, so its process must be able to"
        self._process, self._nature, self._faults = process, process.nature, world.faults
        self._outage: Outage | None = None
        process.nature.has_files = True
        self._begin = process.begin
        world.threads.wait_in_strands()
        super().__init__(objects, pause=self._sleep, now_s=process.nature.loop.time)

    def _sleep(self, _seconds: float) -> None:
        # how long is drawn here: the last digits of what is asked for are by another die
        _wait(lambda wake: self._later(self._nature.weather.bucket_pause_ms, wake, None))

    def at_once(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        outcomes: dict[int, Outcome] = {}

        def see_to(wake: Wake) -> None:
            def done(number: int, result: object, raised: BaseException | None) -> None:
                outcomes[number] = result, raised
                if len(outcomes) == len(jobs):
                    self._nature.later(0, wake, None)

            for number, job in enumerate(jobs):
                self._begin(job, partial(done, number))

        if jobs:
            _wait(see_to)
        for _, raised in outcomes.values():
            if raised is not None:
                raise raised
        return [cast("T", outcomes[number][0]) for number in range(len(jobs))]

    def _answer(self, request: Request) -> Answer:
        answer: Answer | NoReply = _wait(partial(self._send, request))
        if isinstance(answer, NoReply):
            raise answer
        return answer

    # what follows happens on the loop

    def _later(self, span: Span, callback: Callable[..., object], *args: object) -> None:
        self._nature.later(self._nature.draw_ms(span), callback, *args)

    def _note(self, what: str) -> None:
        self._nature.note(self._process.name, f"bucket: {what}")

    def _send(self, request: Request, wake: Wake) -> None:
        nature, weather = self._nature, self._nature.weather
        if isinstance(request, Create):
            is_root = request.key.startswith(ROOTS)
            self._faults.at(KillPoint.BEFORE_ROOT if is_root else KillPoint.BEFORE_PUT, request.key)
        self._note(f"{_brief(request)} is asked")
        self._draw_outages()
        is_write = isinstance(request, Create | Delete)
        if is_write and nature.chance(weather.bucket_doubled):
            self._later(weather.bucket_late_ms, self._take_effect_late, request)
        if self._lasts(self._outage) or nature.chance(weather.bucket_lost):
            self._later(weather.bucket_silent_ms, wake, NoReply("lost on the way there"))
        elif nature.chance(weather.bucket_busy):
            self._later(weather.bucket_ms, wake, NoReply("409 or 503"))
        elif is_write and nature.chance(weather.bucket_late):
            self._later(weather.bucket_late_ms, self._take_effect_late, request)
            self._later(weather.bucket_silent_ms, wake, NoReply("late"))
        elif isinstance(request, Get):
            self._read(request.keys, wake)
        else:
            self._later(weather.bucket_ms, self._arrive, request, wake)

    def _draw_outages(self) -> None:
        nature, weather = self._nature, self._nature.weather
        if nature.chance(weather.bucket_cut):
            self._note("cut off")
            self._outage = Outage(weather, nature.loop.time() + nature.draw_ms(weather.bucket_cut_ms) / 1000)
        if nature.chance(weather.bucket_stands):
            self._note("stands still")
            self.objects.standstill = Outage(
                weather, nature.loop.time() + nature.draw_ms(weather.bucket_stands_ms) / 1000
            )

    def _lasts(self, outage: Outage | None) -> bool:
        return outage is not None and outage.weather is self._nature.weather and self._left_s(outage) > 0

    def _left_s(self, outage: Outage) -> float:
        return outage.until_s - self._nature.loop.time()

    # Whether the store stands still. Then this happens when it goes on.
    def _is_put_off(self, what: Callable[[], None]) -> bool:
        standstill = self.objects.standstill
        if standstill is None or not self._lasts(standstill):
            return False
        self._nature.later(self._left_s(standstill) * 1000, what)
        return True

    def _read(self, keys: tuple[str, ...], wake: Wake) -> None:
        found: dict[str, bytes | None] = {}

        def read(key: str) -> None:
            if not self._is_put_off(partial(read, key)):
                found[key] = self.objects.held.get(key)
                if len(found) == len(set(keys)):
                    self._reply([found[each] for each in keys], wake)

        for key in dict.fromkeys(keys):
            self._later(self._nature.weather.bucket_ms, read, key)

    def _arrive(self, request: Request, wake: Wake) -> None:
        if self._is_put_off(partial(self._arrive, request, wake)):
            return
        with suppress(Killed):  # what the dead have sent takes effect nevertheless, but for the rest of a list
            if isinstance(request, Delete) and len(request.keys) > 1:
                half = len(request.keys) // 2
                self.objects.do(Delete(request.keys[:half]))
                self._visit(KillPoint.MID_COLLECT, request)
                request = Delete(request.keys[half:])
            is_stale = isinstance(request, Newest) and self._nature.chance(self._nature.weather.bucket_stale)
            answer = self.objects.do(request, is_stale=is_stale)
            if is_stale:
                self._note(f"list is stale: {answer!r}")
            if isinstance(request, Create):
                self._visit(KillPoint.AFTER_PUT, request)
            self._reply(answer, wake)

    def _visit(self, point: KillPoint, request: Request) -> None:
        if self._process.alive:
            self._faults.at(point, _brief(request))

    def _reply(self, answer: Answer, wake: Wake) -> None:
        weather = self._nature.weather
        if self._lasts(self._outage) or self._nature.chance(weather.bucket_answer_lost):
            self._later(weather.bucket_silent_ms, wake, NoReply("the answer was lost"))
        else:
            self._later(weather.bucket_ms, wake, answer)

    def _take_effect_late(self, request: Request) -> None:
        if not self._is_put_off(partial(self._take_effect_late, request)):
            self._nature.note("bucket", f"{_brief(request)} comes late")
            self.objects.do(request)


def _wait(see_to: Callable[[Wake], None]) -> Answer | NoReply:
    strand = current_strand()
    assert strand is not None, "only a simulated thread can wait for a simulated bucket"
    answer: Answer | NoReply = strand.wait(see_to)
    return answer


def _brief(request: Request) -> str:
    match request:
        case Create(key, _):
            return f"create {key}"
        case Newest(prefix) | Names(prefix, _):
            return f"{type(request).__name__.lower()} {prefix!r}"
        case Get(keys) | Delete(keys):
            return f"{type(request).__name__.lower()} {keys[0]} and {len(keys) - 1} more"
