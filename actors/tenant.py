"""One life of one agent on a host: it comes up, carries a run (`attempt`), handles mail (`mailbox`), answers calls, and leaves."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.activity import ACTIVITY, Activity
from actors.agent import Agent
from actors.alarm_clock import AlarmClock
from actors.attempt import carry
from actors.author import is_async, tried
from actors.code import load_type
from actors.dispatch import Dispatch
from actors.family import FORGET, Family
from actors.jobs.fibers import Fibers
from actors.jobs.schedules import Schedules
from actors.jobs.waiting_line import WaitingLine
from actors.mailbox import Mailbox
from actors.once import once
from actors.outbox import Outbox
from actors.ports import KillPoint
from actors.results import RunInfo
from actors.run_context import RunContext
from actors.schema import exposed_call
from actors.state_watch import StateWatch
from actors.threads import wait_for
from actors.wire import error_to_plain, message
from ledger import Awake, Released, StaleIncarnation, Stimulus, agent_id, check_id, name_of, type_of
from ledger.storage import FIBER, QUEUED, SCHEDULE, Storage, unbound

if TYPE_CHECKING:
    from actors.host import Host


JOBS = (("fibers", FIBER), ("schedules", SCHEDULE), ("waiting_line", QUEUED))


class Tenant:
    """An agent in memory, and everything that is under way for it."""

    def __init__(self, host: Host, agent_id: str, incarnation: int) -> None:
        self.host, self.agent_id, self.incarnation = host, agent_id, incarnation
        self.name = name_of(agent_id)
        self.limits, self.threads, self.faults = host.limits, host.world.threads, host.world.faults
        self.code_dir = host.code_dir
        self.agent: Any = None
        self._storage: Storage | None = None
        self.is_leaving = False
        self.idle_since_s = 0.0
        self._tasks: set[asyncio.Task[Any]] = set()
        self.mail = Mailbox(self)
        self._steps: dict[str, dict[str, bytes]] = {}
        self._up: asyncio.Task[None] | None = None
        self.is_up = False  # whether `on_start` has returned
        self.is_first_life = False
        self._runs: dict[str, None] = {}
        self._vigils: set[object] = set()

    @once
    def dispatch(self) -> Dispatch:
        """Asks for runs on behalf of the agent."""
        return Dispatch(self)

    @once
    def alarms(self) -> AlarmClock:
        """When the agent must be awake again."""
        return AlarmClock(self)

    @once
    def fibers(self) -> Fibers:
        """The agent's own durable jobs."""
        return Fibers(self)

    @once
    def schedules(self) -> Schedules:
        """What is called at its time."""
        return Schedules(self)

    @once
    def waiting_line(self) -> WaitingLine:
        """What is called one after the other."""
        return WaitingLine(self)

    @once
    def family(self) -> Family:
        """The agent's relatives."""
        return Family(self)

    @once
    def outbox(self) -> Outbox:
        """The agent's transactions, and what they leave to be said."""
        return Outbox(self)

    @property
    def storage(self) -> Storage:
        """The agent's storage, opened when it is first looked at: an instant child never does."""
        if self._storage is None:
            self._storage = self.host.cabinet.open(self.agent_id, self.incarnation)
            if self.agent is not None:
                StateWatch(self).begin(self._storage.state)
        return self._storage

    @property
    def is_storage_open(self) -> bool:
        """Whether this life has looked at its storage."""
        return self._storage is not None

    @property
    def has_storage(self) -> bool:
        """Whether anything was ever written."""
        if self._storage is None:
            return self.host.cabinet.exists(self.agent_id)
        return self._storage.exists

    # coming up

    async def ready(self) -> None:
        """Bring the agent up, once; everything else of this life waits for it. What `on_start` raises is raised to all who wait."""
        if self.is_up:
            return
        if self._up is None:
            if type_of(self.agent_id) in self.host.loaded and not self._constructed_for_start():
                self.is_up = True
                return
            self._up = asyncio.get_running_loop().create_task(self._come_up())
            self._up.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        await asyncio.shield(self._up)

    def _constructed_for_start(self) -> bool:
        """Make the author's object; whether more is to be done before it can work."""
        agent_class = load_type(type_of(self.agent_id), self.code_dir)
        self.agent = agent_class()
        vars(self.agent)["_perdure"] = self  # the one attribute of ours
        if self._storage is not None:
            StateWatch(self).begin(self._storage.state)
        fresh = self._storage is None and self.is_first_life
        return self.overrides("on_start") or not (fresh or not self.has_storage)

    async def _come_up(self) -> None:
        if self.agent is None:  # its code is imported on a thread, so that the host goes on answering meanwhile
            await self.threads.run(lambda: load_type(type_of(self.agent_id), self.code_dir))
            self.host.loaded.add(type_of(self.agent_id))
            self._constructed_for_start()
        if self.has_storage:
            self.outbox.flush()
        if self.overrides("on_start"):
            ACTIVITY.set(Activity(f"{self.agent_id}/{self.incarnation}"))
            await self.call(self.agent.on_start)
        self.is_up = True
        if self.has_storage:
            self._take_up_jobs()
            self.agent.woken()

    def _take_up_jobs(self) -> None:
        """Wake the parts whose rows an earlier life left, and those that `on_start` has used already."""
        records = self.storage.records()
        for part, kind in JOBS:
            if part in vars(self) or records.keys(kind):
                getattr(self, part).woken()

    def now_ms(self) -> int:
        """Wall time, in milliseconds since the epoch."""
        return self.host.world.clock.now_ms()

    def overrides(self, method: str) -> bool:
        """Whether the author's class has its own version of a method of `Agent`."""
        return getattr(type(self.agent), method) is not getattr(Agent, method)

    async def call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an author's method: async ones on the loop, sync ones on a worker thread."""
        if is_async(method):
            return await method(*args, **kwargs)
        outcome = await self.threads.run(partial(method, *args, **kwargs))
        return await outcome if inspect.isawaitable(outcome) else outcome

    async def wake(self) -> None:
        """Come up without work of its own."""
        _, problem = await tried(self.ready())
        if problem is not None:
            self.trouble("on_start", problem)
            self.alarms.come_back()
            self.leave()
            return
        self.push(Awake(self.agent_id, self.incarnation))
        self.host.touch(self)

    # a run

    @property
    def is_of_run(self) -> bool:
        """Whether the agent is the child of a run."""
        return bool(self._runs)

    def carries(self, run_id: str) -> bool:
        """Whether this life has been given the run."""
        return run_id in self._runs

    def begin_run(self, run_id: str, attempt: int, body: bytes, options: dict[str, Any], *, collect: bool) -> None:
        """Begin one attempt."""
        self._runs[run_id] = None
        self.is_first_life = attempt == 1
        run = RunContext(self, run_id, attempt, self.incarnation, options.get("tool_call"))
        self.spawn(carry(self, run, body, collect=collect))

    def leave_with(self, farewell: Stimulus) -> None:
        """Leave in the same breath as the last word: everything is durable, or becomes so with it."""
        self._close()
        self.alarms.say()
        self.push(farewell)
        self.host.forget(self)

    @property
    def has_other_work(self) -> bool:
        """Whether anything but the current task is under way."""
        mine = asyncio.current_task()
        return not self.mail.is_empty or any(task is not mine and not task.done() for task in self._tasks)

    # calls and signals

    async def answer(self, ref: str, method_name: str, body: bytes) -> None:
        """Answer a call from outside."""
        reply, problem = await tried(self._answer(ref, method_name, body))
        if problem is None:
            self.host.answer(ref, True, reply)
        else:
            self.host.answer(ref, False, error_to_plain(problem))
        self.host.touch(self)

    async def _answer(self, ref: str, method_name: str, body: bytes) -> bytes:
        if method_name != FORGET:
            await self.ready()
        ACTIVITY.set(Activity(f"call/{ref}"))
        if method_name.startswith("\0"):
            answered = await self.family.answer(method_name, body)
            if answered is not None:
                return answered
        arguments, returned = exposed_call(type(self.agent), method_name, body)
        outcome = await self.call(getattr(self.agent, method_name), *arguments.args[1:], **arguments.kwargs)
        return returned.encode("return", outcome, self.limits.output_bytes_max)

    async def signal(self, info: RunInfo, snapshot: dict[str, Any]) -> None:
        """Tell the author's `on_progress`; what it raises stops nothing (spec W-54)."""
        if "live_data" in snapshot:
            snapshot["data"] = snapshot.pop("live_data")
        await self.ready()
        _, problem = await tried(self.call(self.agent.on_progress, info, snapshot))
        if problem is not None:
            self.trouble("on_progress", problem)

    # what runs and agents use

    def restore(self, path: Path) -> None:
        """Begin with a copy of another storage, and with what is planned there."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None
        self.host.cabinet.restore(self.agent_id, path)
        self.on_loop(self.schedules.second_look.look)
        self.on_loop(self.waiting_line.second_look.look)

    def reopen(self) -> None:
        """Open the storage again, after an error of the disk ended the handle."""
        if self._storage is not None:
            self._storage.close()
            self._storage = None

    def fork(self, name: str) -> None:
        """Copy this agent's storage for another agent of its class."""
        self.storage.checkpoint()
        target = agent_id(type_of(self.agent_id), check_id("name", name, self.limits.id_max))
        self.host.cabinet.fork(self.agent_id, target)

    def steps(self, run_id: str) -> dict[str, bytes]:
        """The steps that this run remembers."""
        if run_id not in self._steps:
            self._steps[run_id] = self.storage.steps(run_id) if self.has_storage else {}
        return self._steps[run_id]

    def push(self, stimulus: Stimulus) -> None:
        """Say something to the supervisor."""
        self.host.peer.push(message(stimulus))

    async def durable(self, stimulus: Stimulus) -> None:
        """Say something to the supervisor and wait until it is durable."""
        await self.host.peer.durable(message(stimulus))

    async def ask(self, name: str, *args: Any) -> Any:
        """Ask the supervisor a question."""
        return await self.host.asking.ask(name, *args)

    def bridge(self, job: Coroutine[Any, Any, Any]) -> Any:
        """The way from sync code on a worker thread into the loop; in async code just the coroutine.

        A thread that waits here lends its slot. Raises `StaleIncarnation` there as soon as this life is over.
        """
        return job if self.host.is_on_loop else wait_for(self.host.from_thread(self._for_thread(job)))

    async def _for_thread(self, job: Coroutine[Any, Any, Any]) -> Any:
        """What a thread waits for is a task of this life, and ends with it."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if not self.is_leaving:
                return await job
        except asyncio.CancelledError:
            if not self.is_leaving:
                raise
        finally:
            self._tasks.discard(task)
        job.close()
        raise StaleIncarnation(self.agent_id, "this life of the agent was told to stop")

    def on_loop(self, job: Callable[[], None]) -> None:
        """Do something on the host's loop, from whichever thread."""
        self.host.on_loop(job)

    def done(self) -> Any:
        """Nothing to wait for. A thread waits for the loop's turn even so, lest it run away from it; for that it lends no slot."""
        return _nothing() if self.host.is_on_loop else self.host.from_thread(_nothing()).result()

    def spawn(self, job: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin a task of this life. It is no part of a transaction that happens to be open where it is begun."""
        task = asyncio.get_running_loop().create_task(job, context=unbound())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @contextmanager
    def kept_awake(self) -> Iterator[None]:
        """No sleep meanwhile."""
        vigil = object()
        self._vigils.add(vigil)  # on whichever thread
        try:
            yield
        finally:
            self._vigils.discard(vigil)
            self.on_loop(partial(self.host.touch, self))

    def trouble(self, doing: str, problem: Exception) -> None:
        """Something failed where no caller, run or mail carries the error. The log and the author are told."""
        self.host.report_trouble(self.agent_id, doing, problem)
        if self.agent is not None and self.overrides("on_error") and not self.is_leaving:
            self.spawn(tried(self.call(self.agent.on_error, problem, doing)))

    # leaving

    @property
    def may_sleep(self) -> bool:
        """Whether nothing is under way, and the agent is up: one that is coming up has work to do."""
        return not (self._tasks or self._vigils or self.is_leaving) and self.mail.is_empty and self.is_up

    @property
    def is_broken(self) -> bool:
        """Whether an error of the disk ended the handle on the storage. Nothing can be done with it; the next life opens another."""
        return self._storage is not None and self._storage.file.ended

    def leave(self) -> None:
        """Leave the host cleanly: everything durable, nothing in memory."""
        self.faults.at(KillPoint.MID_PASSIVATION, self.agent_id)
        self._close()
        self.alarms.say()
        self.push(Released(self.agent_id, self.incarnation))
        self.host.forget(self)

    async def stop(self) -> None:
        """End all work of this life and leave. Async code that does not let itself be cancelled keeps the place. Sync code cannot be
        cancelled: its storage and the runtime are closed to it, and as long as its thread goes on its host counts as worn."""
        self.is_leaving = True
        self.faults.at(KillPoint.MID_CANCEL, self.agent_id)
        coming = [self._up] if self._up is not None and not self._up.done() else []
        tasks = [task for task in (*self._tasks, *coming) if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if not self.is_of_run and not self.is_broken and not self.outbox.is_empty:
            self.alarms.owe("outbox", owes=True)
        self.leave()

    def _close(self) -> None:
        self.is_leaving = True
        if self._storage is not None:
            self._storage.close()


async def _nothing() -> None:
    return None
