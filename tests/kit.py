"""The test kit: a ledger to which facts are given and stimuli are put, and stories that are played in the simulated world.

ledger = Ledger()
ledger.given(asked("r"), placed("r"))
assert ledger.when(Up("r", 1)) == [RunStarted("r", 1)]

async def test_something(stage: Stage) -> None:
    assert (await stage.client.run(Doubler, 2)).output == 4
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, TypeVar

import pytest

from perdure.actors import Agent, Client, KillPoint
from perdure.actors.code.naming import type_name
from perdure.actors.sim_world.simulation import Weather
from perdure.ledger import Fact, HostView, Row, Stimulus, View, agent_id, apply_fact, audit, decide, record_fact
from perdure.ledger.facts import AttemptStarted, RunRequested, RunStarted
from perdure.ledger.notes import Note
from perdure.ledger.run import Run
from perdure.ledger.store.batches import Batch
from perdure.policies import Limits
from perdure.scenarios.testing.laboratory import QUICK, Laboratory

T = TypeVar("T")

TYPE = "tests.toys:Child"
PARENT = "p@tests.toys:Parent"
NOW_MS = 1_000_000
ROOMY = replace(QUICK, hosts_max=6, hosts_warm=2)


def some(first: int, values: Iterable[object]) -> list[Any]:
    """Values of a parameter: the `first` of them are always played, the others by `-m thorough`."""
    return [
        value if place < first else pytest.param(value, marks=pytest.mark.thorough)
        for place, value in enumerate(values)
    ]


# ---------------------------------------------------------------- given, when, then


def asked(run_id: str = "r", *, parent: str = PARENT, life: int = 1, **options: Any) -> RunRequested:
    """A run was requested; `detached=True`, `limit=2`, … are its options."""
    return RunRequested(run_id, TYPE, parent, "", "digest", b"\x01", options, life)


def placed(run_id: str = "r", attempt: int = 1, incarnation: int = 1, host: str = "h1") -> AttemptStarted:
    """A run was given a host."""
    return AttemptStarted(run_id, attempt, incarnation, host)


def begun(run_id: str = "r", attempt: int = 1) -> RunStarted:
    """An attempt is at work."""
    return RunStarted(run_id, attempt)


def child(run_id: str = "r") -> str:
    """The address of the child of a run."""
    return agent_id(TYPE, run_id)


def enacted(view: View, changes: Iterator[Change], at_ms: int) -> Iterator[tuple[Fact | Batch, Row]]:
    """As `apply_fact` does it, but facts and rows, and it fails if deciding alone changes anything in the view."""
    while (change := _decided(view, changes)) is not None:
        rows = apply_fact(view, [change], at_ms)
        if not isinstance(change, Note):
            yield change, rows[0]


def _decided(view: View, changes: Iterator[Change]) -> Change | None:
    before = pickle.dumps(view)
    change = next(changes, None)
    assert pickle.dumps(view) == before, f"the view was changed while {change} was decided"
    return change


def due(view: View, at_ms: int) -> list[str]:
    """The keys of the view's timers and alarms that fire by then."""
    view.timers.fire(at_ms)
    view.alarms.fire(at_ms)
    return [*view.timers.fired, *view.alarms.fired]


Change = Fact | Batch | Note


class Ledger:
    """A view with two hosts, without any process around it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = (limits or Limits()).for_cores(4)
        self.view = View()
        self.now_ms = NOW_MS
        for host_id in ("h1", "h2"):
            self.view.hosts[host_id] = HostView(host_id, None, up=True)

    def given(self, *facts: Fact) -> Ledger:
        """These facts are true."""
        for fact in facts:
            record_fact(self.view, fact, self.now_ms)
        return self

    def later(self, ms: float) -> Ledger:
        """Time passes."""
        self.now_ms += int(ms)
        return self

    def when(self, stimulus: Stimulus) -> list[Fact | Batch]:
        """What the stimulus brings about; it is folded."""
        return self.enact(decide(self.view, stimulus, self.now_ms, self.limits))

    def enact(self, changes: Iterator[Change]) -> list[Fact | Batch]:
        """Put these changes into the view; returns the facts."""
        made = list(enacted(self.view, changes, self.now_ms))
        return [fact for fact, _row in made]

    def run(self, run_id: str = "r") -> Run:
        """The record of a run."""
        return self.view.runs[run_id]

    def mail_state(self, slot: str, run_id: str = "r") -> str | None:
        """Where the mail of a slot is."""
        mail = self.view.mail.get(self.run(run_id).mail_id(slot)) if run_id in self.view.runs else None
        return mail.state if mail is not None else self.run(run_id).slots.get(slot)


# ---------------------------------------------------------------- stories

Moment = Callable[["Stage", str, KillPoint, str], bool]


class Death:
    """Kills whoever comes by one of these points with what is `of` (a pattern) while it is the time: at that visit, and so many in all."""

    def __init__(
        self,
        *points: KillPoint,
        of: str = "*",
        who: str = "*",
        when: Callable[..., object] = lambda *_: True,
        visit: int = 1,
        times: int = 1,
    ) -> None:
        self._points, self.of, self._who, self._when = points, of, who, when
        self._visit, self._times = visit, times
        self.victims: list[str] = []

    @property
    def left(self) -> int:
        """How often it is still to strike."""
        return self._times - len(self.victims)

    def __call__(self, *moment: Any) -> bool:
        *stage, process, point, detail = moment
        if point not in self._points or not fnmatchcase(detail, self.of) or not fnmatchcase(process, self._who):
            return False
        if not self.left or not self._when(*stage):
            return False
        self._visit -= 1
        if self._visit > 0:
            return False
        self.victims.append(process)
        return True


class Stage:
    """A simulated cluster as a story sees it."""

    def __init__(self, laboratory: Laboratory) -> None:
        self.laboratory = laboratory
        self.simulation = laboratory.simulation
        self.client: Client

    @property
    def view(self) -> View:
        """What the living, or the last, supervisor knows."""
        supervisors = self.laboratory.supervisors
        return supervisors[-1].view if supervisors else View()

    def record(self, run_id: str) -> Run | None:
        """A run as the supervisor knows it."""
        return self.view.runs.get(run_id)

    def run(self, run_id: str) -> Run:
        """A run that the supervisor knows."""
        return self.view.runs[run_id]

    def status(self, run_id: str) -> str:
        """Its status, or nothing when it is unknown."""
        run = self.record(run_id)
        return str(run.status) if run is not None else ""

    async def call(self, agent_class: type[Agent], method: str, *args: Any, name: str = "p", **kwargs: Any) -> Any:
        """Call an exposed method."""
        return await self.client.call(agent_class, name, method, args, kwargs)

    async def until(self, condition: Callable[[], bool], timeout_ms: float = 300_000) -> None:
        """Let time pass until something is so. It is looked at as often as is needed to see it within a 400th of the time waited."""
        began_s = asyncio.get_running_loop().time()
        async with asyncio.timeout(timeout_ms / 1000):
            while not condition():
                waited_s = asyncio.get_running_loop().time() - began_s
                await asyncio.sleep(max(0.005, waited_s / 400))

    async def ended(self, run_id: str, status: str | None = None) -> Run:
        """Let time pass until a run has ended (in this way)."""

        def has_ended() -> bool:
            run = self.record(run_id)
            return run is not None and run.has_ended and (status is None or run.status == status)

        await self.until(has_ended)
        run = self.record(run_id)
        assert run is not None
        return run

    def host_of(self, agent: str) -> str:
        """Where an agent lives now."""
        activation = self.view.agents.get(agent)
        return activation.host_id if activation is not None else ""

    def kill_host_of(self, agent: str) -> None:
        """Kill the host on which an agent lives."""
        host = self.host_of(agent)
        assert host, f"{agent} is nowhere"
        self.simulation.kill(host)

    def deliveries(self) -> dict[str, Any]:
        """The audit equation, as of now."""
        return audit(self.view)


def address(agent_class: type[Agent], name: str) -> str:
    """The address of an agent."""
    return agent_id(type_name(agent_class), name)


def played(by: Callable[[Callable[..., Awaitable[Any]]], object]) -> Callable[[T], T]:
    """The test is a story that is played `by` this, which hands over what stands before the `/` of its arguments."""

    def with_player(test: T) -> T:
        test.play = by  # type: ignore[attr-defined]
        return test

    return with_player


def staged(**options: Any) -> Callable[[T], T]:
    """The test is a story of a simulated cluster with these options of `play`."""
    return played(lambda story: play(story, **options))


def play(
    story: Callable[[Stage], Awaitable[T]],
    *,
    seed: int = 1,
    weather: Weather | None = None,
    limits: Limits = ROOMY,
    kill_when: Moment | None = None,
    timeout_ms: float = 3_600_000,
) -> T:
    """Play a story, and check that no process met an unexpected exception and that the audit equation balances."""
    stages: list[Stage] = []

    def rule(process: str, point: KillPoint, detail: str) -> bool:
        return bool(kill_when and stages and kill_when(stages[0], process, point, detail))

    with Laboratory(seed, weather, limits, kill_when=rule) as laboratory:
        stage = Stage(laboratory)
        stages.append(stage)

        async def main(client: Client) -> T:
            stage.client = client
            try:
                return await story(stage)
            except pytest.fail.Exception as failed:  # no Exception, so it would not be told to the one who waits
                raise AssertionError(str(failed)) from failed

        result = laboratory.play(main, timeout_ms)
        balance = stage.deliveries()
    laboratory.simulation.raise_errors()
    assert balance["balanced"], balance
    return result
