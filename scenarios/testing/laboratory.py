"""Test your agents in the simulated world: with kills at durable writes, lost mail and slow disks, replayed by one seed.

    from perdure.scenarios.testing.laboratory import Laboratory, Weather

    async def story(client):
        result = await client.run(MyAgent, {"topic": "HTTP/3"}, run_id="one")
        assert result.ok
        assert await client.agent(MyParent, "home").count() == 1

    with Laboratory(seed=7, weather=Weather.drawn(random.Random(7))) as laboratory:
        laboratory.play(story)
        laboratory.heal()
        laboratory.settle()

While it runs, the invariants of the design are checked; a broken one raises `Violation` out of `play`. `scenarios.swarm.runner.swarm` does
all of this for many seeds, and `scenarios.swarm.explorer.explore` for every place to die.
"""

from __future__ import annotations

import asyncio
import math
import sys
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, suppress
from datetime import datetime
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import CoroutineType
from typing import Any, Self, TypedDict, TypeVar, Unpack, cast, overload

from perdure import (
    Agent,
    BadRequest,
    BucketUnreachable,
    ChatAgent,
    Client,
    Handle,
    HostUnavailable,
    Limits,
    OutcomeUnknown,
    Overloaded,
    RunResult,
)
from perdure.actors import (
    Address,
    AsyncChild,
    AsyncInputless,
    Child,
    Fleet,
    Host,
    Inputless,
    KillPoint,
    Supervisor,
    Telemetry,
    Transport,
    World,
    check_asked,
    check_class,
    given_by,
    gives_bit_by_bit,
    upkeep_pause,
)
from perdure.actors.sim_world.simulation import (
    Lull,
    Overdue,
    Simulation,
    Stuck,
    Weather,
    is_of_authors,
    on_death,
    stopped_by_signals,
)
from perdure.ledger import Run, check_ms, checked, class_name, explain
from perdure.ledger.storage.agent_storages import AgentStorages, Disk, MemoryDisk
from perdure.policies import Answerer, moment_ms
from perdure.scenarios.testing.checks import (
    Ledger,
    LedgerDisk,
    Violation,
    Wiretap,
    demand,
    endless,
    left_behind,
    never_done,
    never_handled,
    out_of_step,
    strangers,
    unbalanced,
    unfinished,
    unlike_the_inboxes,
    unlike_the_shadow,
    unlike_the_snapshot,
)

__all__ = ["QUICK", "Laboratory", "Story", "Violation", "Weather"]

A = TypeVar("A", bound=Agent)
T = TypeVar("T")
Input = TypeVar("Input")
Output = TypeVar("Output")

Story = Callable[[Client], Awaitable[Any]]
"""What a client does. To be played twice in one world it must ask for its work under ids of its own."""

PASSING = (BucketUnreachable, OutcomeUnknown, Overloaded, HostUnavailable)
"""How the weather, or a death, may have a call or new work refused."""
QUICK = Limits(hosts_max=3, hosts_warm=1, idle_ms=2_000, orphan_ms=20_000, turn_max=8)
LOOK_STRIDE = 7
RUNS_FEW = 200  # with so many, each change is looked at
LULL_AFTER_S = 30.0  # agents that are done sleep by then
STILL_AFTER_S = 5.0  # a checkpoint has been taken by then
LEAP_MAX_S = 86_400.0
VAIN_S = 30 * LEAP_MAX_S  # for so long nothing happened and nothing was due: nothing ever will
RUNS_TOLD_MAX = 5
BUCKET_LEDGER = "perdure.scenarios.testing.bucket_ledger"  # what it needs may not be installed


class PlayOptions(TypedDict, total=False):
    run_id: str | None
    timeout_ms: float | None


class Laboratory:
    """A simulated cluster with Perdure on it. What is durable lies here, outside of every process, and outlives each kill.

    Invariants are looked at after every `step_stride` steps of the loop if a new fact has become durable since; with `checked=False` only
    what is free is checked. `diaries=True` says that every handler of every parent writes `run.delivery_id` into a table `told` of its
    storage: then `verify` holds these rows against the account, too. One that took effect twice is found even if the runtime believes its
    own inbox wrongly. Clocks begin at `begins`, a datetime with a time zone, by default on 15 June 2025 at 15:06:40 UTC: where an agent
    asks Python for the time, begin now. `telemetry` is told the spans of all processes. With a folder `carried`, the ledger is in a
    simulated bucket, and carries the storages; each machine has its cache in the folder, and that of a host dies with it. Needs
    `perdure[bucket]`. `parked=True` says that handlers and callbacks are meant to fail for good: `settle` lets be what is
    parked.
    """

    def __init__(
        self,
        seed: int,
        weather: Weather | None = None,
        limits: Limits = QUICK,
        *,
        checked: bool = True,
        diaries: bool = False,
        telemetry: Telemetry | None = None,
        carried: Path | None = None,
        begins: datetime | None = None,
        parked: bool = False,
        **simulation: Any,
    ) -> None:
        weather = Weather.calm() if weather is None else weather
        check_kind("weather", weather, Weather)
        check_kind("limits", limits, Limits)
        if begins is not None:
            simulation["begins_ms"] = _wall_ms(begins)
        self.limits, self._telemetry = limits, telemetry or Telemetry()
        self._diaries, self._may_park = diaries, parked
        self._client: Client | None = None
        self._is_open = False
        self.store = Ledger(carries_storages=carried is not None)
        self.disk = MemoryDisk() if carried is None else LedgerDisk(carried / "verified", self.store)
        self.bucket: Any = None
        if carried is not None:
            module = _bucket_module()
            self.bucket = module.BucketLedger(carried, self.store)
            simulation["harmless"] = (*simulation.get("harmless", ()), module.BucketRefused)
        self.supervisors: list[Supervisor] = []
        self.hosts: dict[str, Host] = {}
        self._seen = 0
        simulation.setdefault("after_step", self.look if checked else None)
        simulation.setdefault("step_stride", LOOK_STRIDE)
        self._lulled_at, self._lull_since_s = -1, 0.0
        self.simulation = Simulation(seed, weather, self._supervisor, self._host, **simulation)
        self.simulation.loop.lull = self._lull

    def _supervisor(self, world: World, fleet: Fleet) -> Wiretap:
        agent_storages = AgentStorages(self.disk)
        on_death(agent_storages.crash)
        store = self.store if self.bucket is None else self.bucket.life(world, self.simulation.weather.cache_lost)
        supervisor = Supervisor(world._replace(telemetry=self._telemetry), fleet, store, agent_storages, self.limits)
        self.supervisors.append(supervisor)
        on_death(lambda: self.supervisors.remove(supervisor))
        return Wiretap(supervisor, self.store)

    def _host(self, world: World, transport: Transport, host_id: str) -> Host:
        disk: Disk = self.disk
        if isinstance(self.disk, LedgerDisk):
            disk = self.disk.of_host(host_id)
            on_death(disk.close)
        agent_storages = AgentStorages(disk, lambda when: world.faults.at(KillPoint.MID_STORAGE, when))
        on_death(agent_storages.crash)
        world = world._replace(telemetry=self._telemetry)
        host = self.hosts[host_id] = Host(world, transport, agent_storages, host_id, self.limits)
        on_death(lambda: self.hosts.pop(host_id).relay.want(False))
        return host

    # The longer nothing becomes durable, the further time may leap: so what upkeep does after a while is done no more than as late again.
    # Where all agents sleep and no host is to leave, it does nothing.
    def _lull(self) -> Lull | None:
        now_s, supervisor = self.simulation.loop.time(), self._ready_supervisor()
        if self._lulled_at != self.store.facts_count or supervisor is None or not self.simulation.is_calm:
            self._lulled_at, self._lull_since_s = self.store.facts_count, now_s
            return None
        quiet_s = now_s - self._lull_since_s
        is_still = not (supervisor.view.awake or supervisor.pool.has_spare)
        after_s, most_s = (STILL_AFTER_S, LEAP_MAX_S) if is_still else (LULL_AFTER_S, quiet_s)
        if quiet_s < after_s:
            return None
        left_s = (supervisor.clock.due_ms() - supervisor.clock.now_ms()) / 1000
        return Lull(quiet_s, min(most_s, LEAP_MAX_S, left_s), quiet_s > VAIN_S and math.isinf(left_s))

    def _ready_supervisor(self) -> Supervisor | None:
        return next((each for each in self.supervisors[-1:] if each.is_ready), None)

    def look(self) -> None:
        """Check what must always hold. Raises `Violation`."""
        if self.store.violations:
            raise Violation("; ".join(self.store.violations))
        if self._seen == self.store.facts_count or not self.supervisors:
            return
        # A look takes time for each run. With thousands of runs there is one for many changes, so that all looks take time in proportion.
        runs = len(self.supervisors[-1].view.runs)
        if self._seen + (runs - RUNS_FEW) // 5 <= self.store.facts_count:
            self._check()

    def _check(self) -> None:
        view = self.supervisors[-1].view
        if view.seq != self.store.shadow.seq:
            return
        self._seen = self.store.facts_count
        demand(
            unlike_the_shadow(view, self.store.shadow),
            out_of_step(view),
            unbalanced(view),
            strangers(self.hosts.values(), self.store.shadow),
        )

    def play(self, story: Callable[[Client], Awaitable[T]], timeout_ms: float | None = None) -> T:
        """Play a story: a coroutine that is given a client. One that cannot end raises `Deadlock`, `Overdue` or `Runaway`, which say what
        runs wait for, with a note of each turn that waits for a person. Raises `BadRequest` in async code, for this has a loop of its
        own, and outside of the laboratory's `with` statement or after `settle`.

        Args:
            timeout_ms: most milliseconds of virtual time. Without it they are three hours, in which those do not count where nothing
                happens: in fine weather time leaps over them, to the next thing that is to happen, be it days ahead.
        """
        before = self._client  # of a story, in which this is refused
        if timeout_ms is not None:
            check_ms("timeout_ms", timeout_ms)
        if self.simulation.loop.is_closed():
            raise BadRequest(
                "laboratory",
                "it is over: `settle`, `verify` and the end of its `with` statement end it; make another one",
            )
        if not self._is_open:
            raise BadRequest(
                "laboratory", "it plays within a `with` statement: `with Laboratory(seed=1) as laboratory:`"
            )

        stories: list[Awaitable[T]] = []

        async def main(world: World, transport: Transport) -> T:
            client = self._client = Client(world, transport, self.limits)
            serving = asyncio.get_running_loop().create_task(client.serve())
            try:
                stories.append(begun(story, client))
                return await stories[0]
            finally:
                serving.cancel()

        try:
            return self.simulation.run(main, timeout_ms=timeout_ms)
        except Stuck as stuck:
            stuck.problem += "".join(map(_standing, stories))
            stuck.instead = list(self._waits())
            if stuck.instead and isinstance(stuck, Overdue):
                had = "three hours of work" if timeout_ms is None else f"{timeout_ms / 1000:g} s"
                stuck.instead.append(f"It had {had}, of virtual time. `timeout_ms=` gives another limit.")
            awake = [tenant.agent for host in self.hosts.values() for tenant in host.tenants.values()]
            for agent in [each for each in awake if isinstance(each, ChatAgent)]:
                for words in agent._perdure_conversation.turns.answers.words():
                    stuck.add_note(words)
            raise
        finally:
            self._client = before

    # What a person is told of a play that does not end. Without a run that has begun, it is where the tasks stand.
    def _waits(self) -> Iterator[str]:
        live: list[Run] = []
        for supervisor in self.supervisors[-1:]:
            live += [run for run in supervisor.view.runs.values() if run.is_live]
            for run in live[:RUNS_TOLD_MAX]:
                what, _, *more = explain(supervisor.view, run, supervisor.clock.now_ms(), self.limits)
                yield " ".join([what, *more])
        if len(live) > RUNS_TOLD_MAX:
            yield f"… and {len(live) - RUNS_TOLD_MAX} more runs have not ended"

    @overload
    def run(
        self, agent_class: AsyncInputless[Output], input: None = None, **options: Unpack[PlayOptions]
    ) -> RunResult[Output]: ...
    @overload
    def run(
        self, agent_class: Inputless[Output], input: None = None, **options: Unpack[PlayOptions]
    ) -> RunResult[Output]: ...
    @overload
    def run(
        self, agent_class: AsyncChild[Input, Output], input: Input, **options: Unpack[PlayOptions]
    ) -> RunResult[Output]: ...
    @overload
    def run(
        self, agent_class: Child[Input, Output], input: Input, **options: Unpack[PlayOptions]
    ) -> RunResult[Output]: ...

    def run(
        self,
        agent_class: type,
        input: object = None,
        *,
        run_id: str | None = None,
        timeout_ms: float | None = None,
    ) -> Any:
        """Run an agent, as a runtime does. Within a story this gives an awaitable (`awaiting`, to a type checker); outside of one it plays
        until there is a result, for `timeout_ms` at most, as `play` says."""
        if self._client is not None and timeout_ms is not None:
            raise BadRequest(
                "timeout_ms", "a story has the limit of its play; `async with asyncio.timeout(…)` bounds a wait"
            )
        if self._client is not None:
            return self._client.run(agent_class, input, run_id=run_id)
        check_asked(agent_class)  # by what is so here, which the story does not see
        return self.play(lambda client: client.run(agent_class, input, run_id=run_id), timeout_ms)

    def agent(self, agent_class: type[A], name: str) -> type[A]:
        """A typed handle, as a runtime's. Within a story a call gives an awaitable; outside of one it plays until there is an answer,
        and of a generator's values until there is the next one."""
        check_class(agent_class)
        return cast("type[A]", Handle(Address.of(agent_class, name), self._call, self._tell))

    def _call(self, *call: Any) -> Any:
        if self._client is not None:
            return self._client.caller.reach(*call)
        to, method, args, kwargs = call
        function = getattr(to.agent_class, method, None)
        if hasattr(function, "__perdure_followed__"):
            return self._followed(to, method, *args, **kwargs)
        if function is not None and gives_bit_by_bit(function):
            return self._given(*call)
        return self.play(lambda client: client.caller.call(*call))

    def _followed(self, to: Address, method: str, first: int = 0) -> Iterator[Any]:

        async def next_event(client: Client) -> Any:
            async with aclosing(client.caller.reach(to, method, (first,), {})) as events:
                return await anext(events)

        while True:
            event = self.play(next_event)
            first = event["number"] + 1
            yield event

    # An agent keeps open what it gives bit by bit. A client ends with its play, so each value is asked for by another one.
    def _given(self, to: Address, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> Iterator[Any]:

        async def encoded(client: Client) -> tuple[bytes, Any, bool]:
            return client.caller.encoded(to.agent_class, method, args, kwargs)

        async def call(*asked: Any) -> object:
            assert self._client is not None, "a play is on"
            return await self._client.caller.call(*asked)

        body, given, _ = self.play(encoded)
        return self._each(given_by(call, to, method, body, given))

    def _each(self, values: AsyncGenerator[T, None]) -> Iterator[T]:
        try:
            while True:
                try:
                    value = self.play(lambda _: anext(values))
                except StopAsyncIteration:
                    return
                yield value
        except GeneratorExit:  # nothing more is wanted
            if self._client is None and not self.simulation.loop.is_closed():
                self.play(lambda _: values.aclose())
            raise

    def asks(self) -> Any:
        """The open questions to people, as `Runtime.asks` gives them. Within a story this gives an awaitable."""
        return self._asked(lambda client: client.ask("asks", None, False, 1000))

    def answer(self, ask_id: str, value: object, *, who: str = "somebody") -> Any:
        """Answer a question to people, as `Runtime.answer` does. Within a story this gives an awaitable."""
        by = Answerer(who, is_operator=True)
        return self._asked(lambda client: client.answer(ask_id, value, by, "laboratory"))

    def _asked(self, ask: Callable[[Client], Awaitable[T]]) -> Any:
        return self.play(ask) if self._client is None else ask(self._client)

    def _tell(self, *call: Any) -> Any:
        if self._client is not None:
            return self._client.tell(*call)
        return self.play(lambda client: client.tell(*call))

    @property
    def is_quiet(self) -> bool:
        """Whether a supervisor knows that nothing is left to do."""
        view = self.supervisors[-1].view if self.supervisors else None
        return view is not None and view.seq == self.store.shadow.seq and not any(unfinished(view))

    # Since a while ago, when its view was of this fact: what has come may not be handed on yet.
    def _only_waits(self, seq: int) -> bool:
        supervisor = self._ready_supervisor()
        if supervisor is None or supervisor.view.seq != seq:
            return False
        return not any(unfinished(supervisor.view, endless(supervisor.view, self.limits)))

    def heal(self) -> None:
        """From now on nothing goes wrong."""
        self.simulation.heal()

    def rest(self, timeout_ms: float | None = None) -> None:
        """Let time pass until nothing is left to do: no run is live, however long it sleeps, no mail is on its way, and no agent is awake.
        An agent may sleep until its alarm, as for a schedule, which may have no end, or for a fiber that sleeps: this does not wait for
        them. A story does, by `asyncio.sleep`. Nor does it wait for runs that wait, on no host and without a limit, for an answer or an
        event, where no alarm is set. Raises `Overdue` or `Deadlock`, with a note of what is left."""

        async def quiet(_client: Client) -> None:
            before = -1
            while not (self.is_quiet or self._only_waits(before)):
                before = self.supervisors[-1].view.seq if self.supervisors else -1
                await upkeep_pause(0.5)

        try:
            self.play(quiet, timeout_ms)
        except Exception as problem:
            left = list(unfinished(self.supervisors[-1].view)) if self.supervisors else ["there is no supervisor"]
            problem.add_note("left to do: " + "; ".join(left[:10]))
            raise

    def settle(self, timeout_ms: float | None = None) -> None:
        """Come to rest, then check everything. Raises `Violation`, also for a run that still waits, and for mail, a schedule or a queued
        item that is parked because its handler or callback failed again and again, and what `rest` raises."""
        self.rest(timeout_ms)
        self.verify()

    def verify(self) -> None:
        """Check what must hold at rest. Ends the simulation."""
        view = self.supervisors[-1].view
        self._check()
        self.simulation.close()
        shadow = self.store.shadow
        runs = shadow.runs.values()
        parents = dict.fromkeys(run.parent for run in runs if run.parent)
        agents = {row.subject for row in self.store.log if row.kind == "AgentActivated"} | {run.child for run in runs}
        demand(
            self.store.violations,
            unlike_the_shadow(view, shadow),
            unlike_the_snapshot(self.store, shadow) if self.bucket is None else self.bucket.unlike(),
            unfinished(view),
            () if self._may_park else chain(never_handled(shadow), never_done(self.disk, agents)),
            unlike_the_inboxes(self.disk, shadow, parents, diaries=self._diaries),
            left_behind(self.disk, shadow, self.store.cleared),
        )

    def __enter__(self) -> Self:
        self._is_open = True
        return self

    def __exit__(self, *_: object) -> None:
        self.simulation.close()
        self.disk.close()


def _standing(story: object) -> str:
    place = ""
    while isinstance(story, CoroutineType) and story.cr_frame is not None:
        frame = story.cr_frame
        if is_of_authors(frame):
            place = f"; the story waits at {frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_qualname}"
        story = story.cr_await
    return place


class NoStory(BadRequest):
    """What was to be played is no story. It is refused, and no finding."""


def begun(story: Callable[[Client], Awaitable[T]], client: Client) -> Awaitable[T]:
    pending: object = story(client) if callable(story) else None
    if not isinstance(pending, Awaitable):
        raise NoStory("story", f"{story!r:.200} is no coroutine function; write `async def story(client)`")
    return pending


def check_kind(field: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise BadRequest(field, f"{value!r:.200} is {class_name(type(value))}; give `{kind.__name__}(…)`")


def _wall_ms(begins: datetime) -> int:
    check_kind("begins", begins, datetime)
    at_ms = round(checked(lambda: moment_ms("begins", begins)))
    if at_ms < 0:
        raise BadRequest("begins", f"{begins} lies before 1970")
    return at_ms


def _bucket_module() -> Any:
    try:
        return import_module(BUCKET_LEDGER)
    except ImportError as problem:
        raise BadRequest("carried", f"needs `pip install 'perdure[bucket]'` ({problem})") from problem


def weathered(laboratory: Laboratory, fire: Story, calm: Story, timeout_ms: float | None) -> None:
    """Play a story in the weather and one when it is over, and check everything at rest. Raises what is found."""
    with suppress(*PASSING):  # the weather did that, so the fire ends here
        laboratory.play(fire, timeout_ms)
    laboratory.heal()
    laboratory.play(calm, timeout_ms)
    laboratory.settle(timeout_ms)
    laboratory.simulation.raise_errors()


def finding(play: Callable[[], None]) -> tuple[str, str]:
    """The failure of a play, in words and as a traceback; empty without one."""
    with stopped_by_signals():  # the end of a test's time is none
        try:
            play()
        except (NoStory, _outcome_of_pytest("skip"), _outcome_of_pytest("xfail"), _outcome_of_pytest("exit")):
            raise
        except (Exception, BaseExceptionGroup, _outcome_of_pytest("fail")) as failure:
            words = "; ".join([f"{type(failure).__name__}: {str(failure)[:1500]}", *getattr(failure, "__notes__", ())])
            return words, "".join(traceback.format_exception(failure))
    return "", ""


# Most are no `Exception`s. Where one was raised, pytest is there, which is needed for nothing else; otherwise it is what no play raises.
def _outcome_of_pytest(name: str) -> type[BaseException]:
    outcome: type[BaseException] = getattr(getattr(sys.modules.get("pytest"), name, None), "Exception", GeneratorExit)
    return outcome
