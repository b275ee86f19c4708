"""The services of a host: what it offers to the lives of agents on it, and what these share in memory.

A life knows no more of its host than this: neither the other lives there, nor what the supervisor says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sized
from concurrent.futures import Future
from contextvars import Context
from pathlib import Path
from typing import TypeVar

from perdure.actors.code.author_call import text_of, traced
from perdure.actors.code.carried_code import CarriedCode
from perdure.actors.link.call_log import CallLog
from perdure.actors.link.messages import CallAnswered, CodeFiles, HostRests, Message, Patches, Plain
from perdure.actors.link.peer import LATER_S, Peer
from perdure.actors.link.supervisor_client import SupervisorClient
from perdure.actors.link.wire import error_to_plain
from perdure.actors.ports import World
from perdure.actors.tasks import Pending, Tasks
from perdure.actors.telemetry.telemetry import HeldTelemetry
from perdure.actors.threads import beside
from perdure.ledger import BadRequest, CarriedDisk, StorageError, Up, type_of
from perdure.ledger.storage.agent_storages import AgentStorages, CommitPart, Disk, unbound
from perdure.policies import Limits

T = TypeVar("T")
LONG_TURN_S = 5.0  # authors are told of a sync method, once for each class, that has waited for longer
MOMENT_S = 0.025  # an attempt that ends within it is reported once, by its end
log = logging.getLogger("perdure.host")
# What authors' code raises. Hosts print it; other programs ask for it.
authors_log = logging.getLogger("perdure.agents")
authors_log.addHandler(logging.NullHandler())


# Callbacks of schedules and of the queue that are known to be quick are called together.
QUICK_MS = 5
NEWEST_SHARE = 0.25  # of the latest call in what is taken for the pace


class Paces:
    """How long callbacks have taken on one host of late. A single slow call (the machine was busy) is forgotten after a few quick ones."""

    def __init__(self) -> None:
        self._pace_ms: dict[tuple[str, str], float] = {}

    def note(self, agent_id: str, callback: str, took_ms: int) -> None:
        key = type_of(agent_id), callback
        pace_ms = self._pace_ms.get(key, took_ms)
        self._pace_ms[key] = pace_ms + (took_ms - pace_ms) * NEWEST_SHARE

    def is_quick(self, agent_id: str, callback: str) -> bool:
        return self._pace_ms.get((type_of(agent_id), callback), QUICK_MS) < QUICK_MS  # unknown ones are not quick


# A write that is due. `failed` is called with the reason if it cannot be made durable.
class DueWrite:
    def __init__(self, write: Callable[[], None], failed: Callable[[StorageError], None], context: Context) -> None:
        self._write, self._failed, self._context = write, failed, context
        self._is_cancelled = False

    def cancel(self) -> None:
        self._is_cancelled = True

    def do(self) -> None:
        if not self._is_cancelled:
            self.tried(lambda: self._context.run(self._write))

    def tried(self, step: Callable[[], None]) -> None:
        try:
            step()
        except StorageError as problem:
            self._failed(problem)


class CommitBatcher:
    """Writes of several agents on the loop of one host. Those that are due in one turn of the loop become durable together."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._turn = 0
        self._due: dict[int, list[DueWrite]] = {}  # by the turn of the loop

    def soon(
        self, write: Callable[[], None], failed: Callable[[StorageError], None], context: Context, turns: int
    ) -> DueWrite:
        """Write after so many turns of the loop. What follows when it is durable is registered by `Transaction.then`."""
        if not self._due:
            # a copy, because the write enters its context by itself, and none can be entered twice
            asyncio.get_running_loop().call_soon(self._next, context=context.copy())
        due = DueWrite(write, failed, context)
        self._due.setdefault(self._turn + turns, []).append(due)
        return due

    def _next(self) -> None:
        self._turn += 1
        due = self._due.pop(self._turn, None)
        if self._due:
            asyncio.get_running_loop().call_soon(self._next)
        if due is not None:
            self._write(due)

    def _write(self, due: list[DueWrite]) -> None:
        parts: list[CommitPart] = []
        with self._disk.group_commit() as begin:
            for each in due:
                parts.append(begin())
                each.do()
        for each, part in zip(due, parts, strict=True):
            each.tried(part.told)


class HostServices:
    """What the lives on one host are given.

    Attributes:
        tasks: those of the host itself.
        agent_storages: the storages of the agents that come to live here.
        writes: those of several agents that become durable together.
        peer: the way to the supervisor.
        supervisor: what was asked of the supervisor, and is waited for.
        code_dir: where classes of notebooks lie, if there are any.
        package: what the code of the agents here came in, if it is not installed; their children need it too.
        code: the code directory, where it is a cache.
        loaded: the types whose code was imported here; of the host, so that a simulation is the same each time.
        libraries: the providers of models whose libraries were imported here.
        paces: how long callbacks have taken here.
        calls: the calls that were handed to this host.
        is_followed: whether runs are followed, here or elsewhere.
        agents: those that live here.
        leaving: the lives whose storages are being closed, as agent and incarnation; they have yet to say goodbye.
    """

    def __init__(
        self,
        world: World,
        tasks: Tasks,
        limits: Limits,
        agent_storages: AgentStorages,
        peer: Peer,
        supervisor: SupervisorClient,
        code_dir: Path | None,
        package: str,
    ) -> None:
        self.tasks, self.limits = tasks, limits
        self.agent_storages, self.peer, self.supervisor = agent_storages, peer, supervisor
        self.writes = CommitBatcher(agent_storages.disk)
        self._carried = agent_storages.disk if isinstance(agent_storages.disk, CarriedDisk) else None
        self._held_spans = HeldTelemetry(world.telemetry, self.until_durable, self._start_soon)
        is_held = self._carried is not None and world.telemetry.is_on
        self.world = world._replace(telemetry=self._held_spans) if is_held else world
        self.code_dir, self.package = code_dir, package
        self.code = CarriedCode(code_dir) if code_dir is not None and self._carried is not None else None
        self.loaded: set[str] = set()
        self.libraries: set[str] = set()
        self.paces = Paces()
        self.calls = CallLog()
        self.is_followed = False
        self.agents: Sized = ()
        self.leaving: set[tuple[str, int]] = set()
        self._begins_from_s = 0.0
        self._ups: dict[str, Up] = {}
        self._resting: set[str] = set()
        self._slow_types: set[str] = set()
        self._said_resting = 0
        self._is_saying_rests = False
        self._is_saying_soon = self._is_saying_patches = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        if self._carried is not None:
            self.peer.said_first = self._said_first
            self._carried.on_patch = lambda: self.on_loop(self._soon_patches)

    def _said_first(self) -> list[Message]:
        said: list[Message] = []
        if self.code is not None and (files := self.code.take()):
            said.append(CodeFiles(files))
        if self._carried is not None and (patches := self._carried.take_patches()):
            said.append(Patches([each.packed() for each in patches]))
        return said

    @property
    def carried(self) -> CarriedDisk:
        # The disk whose storages the supervisor carries.
        assert self._carried is not None, "only who carries storages says what they are"
        return self._carried

    def forget_storage(self, agent_id: str) -> None:
        if self._carried is not None:
            self._carried.let_go(agent_id)

    async def until_durable(self) -> None:
        """Wait until nothing that was committed here can be lost with this machine."""
        if self._carried is not None:
            await self.peer.until_durable()

    def close(self) -> None:
        # What is held here, and is durable, may leave.
        self.peer.say_first()
        if self.peer.is_clear:
            self._held_spans.pass_on()

    def _start_soon(self, job: Callable[[], Pending[None]]) -> None:
        def start() -> None:
            if not self.tasks.has_ended:
                self.tasks.start(job(), unbound())

        self.on_loop(start)

    def _soon_patches(self) -> None:
        if not self._is_saying_patches:
            self._is_saying_patches = True
            asyncio.get_running_loop().call_later(LATER_S, self._say_patches)

    def _say_patches(self) -> None:
        self._is_saying_patches = False
        self.peer.say_first()

    @property
    def is_carried(self) -> bool:
        return self._carried is not None

    @property
    def is_crowded(self) -> bool:
        # Then writes on the loop would hold up other agents, or the loop would wait for locks of writes beside it.
        return len(self.agents) > self.limits.inline_agents_max or self.world.threads.writes_waiting > 0

    def begin_nothing(self, for_s: float) -> None:
        self._begins_from_s = max(self._begins_from_s, asyncio.get_running_loop().time() + for_s)

    @property
    def begins_nothing(self) -> bool:
        return asyncio.get_running_loop().time() < self._begins_from_s

    # what is said to the supervisor

    def answer(self, ref: str, ok: bool, value: Plain) -> None:
        # The answer is kept for a supervisor that asks again.
        try:
            self.peer.push_awaited(CallAnswered(ref, ok, value))
        except BadRequest as problem:  # the answer cannot be sent: the caller gets to know why
            ok, value = False, error_to_plain(problem)
            self.peer.push_awaited(CallAnswered(ref, ok, value))
        self.calls.answer(ref, ok, value)

    def soon_up(self, said: Up) -> None:
        # Instant attempts end before the timer rings, and their end says that they were at work.
        if not self._is_saying_soon:  # one timer serves all: instant runs end before it
            self._is_saying_soon = True
            asyncio.get_running_loop().call_later(MOMENT_S, self._say_ups)
        self._ups[said.run_id] = said

    def _say_ups(self) -> None:
        self._is_saying_soon = False
        for run_id in list(self._ups):
            self.up(run_id)

    def up(self, run_id: str) -> None:
        # That this attempt is at work was to be said soon, and there is other news of it now.
        said = self._ups.pop(run_id, None)
        if said is not None:
            self.peer.push(said)

    def ended(self, run_id: str) -> None:
        self._ups.pop(run_id, None)
        self.rests(run_id, rests=False)

    def rests(self, run_id: str, *, rests: bool) -> None:
        # The supervisor is told how many rest, when that has settled.
        if rests == (run_id in self._resting):
            return
        (self._resting.add if rests else self._resting.discard)(run_id)
        if not self._is_saying_rests:
            self._is_saying_rests = True
            asyncio.get_running_loop().call_later(MOMENT_S, self.say_rests)

    def say_rests(self) -> None:
        self._is_saying_rests = False
        if self._said_resting != len(self._resting):
            self._said_resting = len(self._resting)
            self.peer.push(HostRests(self._said_resting))

    def say_rests_anew(self) -> None:
        # A supervisor that is greeted knows of none.
        self._said_resting = 0
        if self._resting:
            asyncio.get_running_loop().call_soon(self.say_rests)

    def report_failure(self, area: str, agent_id: str, doing: str, problem: BaseException, run_id: str = "") -> None:
        trace = traced(problem, self.limits.error_chars_max)
        about = {"agent_id": agent_id, "run_id": run_id}
        authors_log.getChild(area).warning("agent %s failed in %s:\n%s", agent_id, text_of(doing), trace, extra=about)

    def report_refused(self, agent_id: str, method: str) -> None:
        words = (
            "agent %s: %s was told to stop and goes on, so storage and runtime are closed to it. A task ends by its CancelledError:"
            " code that catches it raises it again, and sync code looks at `is_cancelled`"
        )
        authors_log.getChild("life").warning(words, agent_id, text_of(method), extra={"agent_id": agent_id})

    def report_turn(self, agent_id: str, waited_s: float) -> None:
        if waited_s > LONG_TURN_S and type_of(agent_id) not in self._slow_types:
            self._slow_types.add(type_of(agent_id))
            words = (
                "agent %s: a sync method has waited %.0f s for its turn. They run one at a time, unless marked %s or %s"
            )
            marks = "`@exposed(concurrent=True)`", "`@tool(concurrent=True)`"
            authors_log.getChild("call").warning(words, agent_id, waited_s, *marks, extra={"agent_id": agent_id})

    def report_schedule(self, agent_id: str, said: str) -> None:
        authors_log.getChild("schedule").warning("agent %s: %s", agent_id, text_of(said), extra={"agent_id": agent_id})

    def report_finding(self, agent_id: str, finding: str) -> None:
        log.warning("storage of %s: %s", agent_id, finding)

    # the loop, and the threads beside it

    @property
    def is_on_loop(self) -> bool:
        # A thread beside it may have a loop of its own.
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def from_thread(self, job: Pending[T]) -> Future[T]:
        # The job works in the context of the thread.
        assert self._loop is not None, "authors' code runs on hosts that serve"
        return beside().run(self.world.threads.bridge, job, self._loop)

    def on_loop(self, job: Callable[[], None]) -> None:
        if self.is_on_loop:
            job()
        elif self._loop is not None:
            self._loop.call_soon_threadsafe(job, context=beside())
