"""A tenant: one life of one agent on a host, with its parts. It comes up, carries a run, handles mail, answers calls, and leaves.

The parts stand on the life and on each other, each on those that it is given here:

    life ← outbox, alarms, state watch ← dispatch, asking, family, mailbox, fibers, schedules, queue
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from perdure.actors.code.author_call import in_time, overrides, tried
from perdure.actors.code.naming import load_type
from perdure.actors.code.signatures import exposed_call
from perdure.actors.jobs.fibers import Fibers
from perdure.actors.jobs.queue import CallbackQueue
from perdure.actors.jobs.schedules import Schedules
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.alarm_clock import AlarmClock
from perdure.actors.life.asking import Asking
from perdure.actors.life.attempt import carry
from perdure.actors.life.call_streams import CallStreams
from perdure.actors.life.class_options import check_class
from perdure.actors.life.dispatch import Dispatch
from perdure.actors.life.family import FORGET, Family
from perdure.actors.life.host_services import HostServices
from perdure.actors.life.life import Life, cached_once
from perdure.actors.life.mailbox import Letter, Mailbox
from perdure.actors.life.one_transaction import FIRST, bring_up_to_date
from perdure.actors.life.outbox import Outbox
from perdure.actors.life.results import RunInfo
from perdure.actors.life.run_context import RunContext
from perdure.actors.life.state_watch import StateWatch
from perdure.actors.life.waits import SentEvent
from perdure.actors.link.direct_calls import BEGINS, NOT_NOW, DirectRoute, append_route, method_key
from perdure.actors.link.messages import CopyStorage, Deliver, Report
from perdure.actors.link.wire import error_to_plain
from perdure.actors.ports import KillPoint
from perdure.actors.telemetry.telemetry import CARRIED
from perdure.ledger import (
    BEGAN_BY,
    COLLECTED_NOTHING,
    EVENT,
    Awake,
    BadRequest,
    PerdureError,
    Released,
    StartTimedOut,
    Unstarted,
    agent_id,
    check_id,
    first_of_copy,
    type_of,
)
from perdure.ledger.storage.agent_storages import State
from perdure.ledger.storage.records import FIBER, QUEUED, SCHEDULE
from perdure.policies import JsonObject, Rank, context_of

JOBS = (("fibers", FIBER), ("schedules", SCHEDULE), ("callback_queue", QUEUED))


class Tenant(Life):
    """An agent in memory, and everything that is under way for it.

    Args:
        gone: is told when the life is over, and nothing is left of it here.

    Attributes:
        leaves_at_rest: whether it leaves as soon as it has nothing to do, since newer code has come.
    """

    def __init__(
        self,
        services: HostServices,
        agent_id: str,
        incarnation: int,
        gone: Callable[[Tenant], None],
        reported: int,
    ) -> None:
        super().__init__(services, agent_id, incarnation, self._failed, reported)
        self._gone = gone
        self._up: asyncio.Task[None] | None = None
        self._is_first_life = self.leaves_at_rest = False
        self._attempts: dict[str, RunContext] = {}

    outbox = cached_once(Outbox)
    alarms = cached_once(AlarmClock)
    state_watch = cached_once(StateWatch)
    call_streams = cached_once(CallStreams)

    @cached_once
    def mail(self) -> Mailbox:
        return Mailbox(self, self.outbox, self.ready)

    @cached_once
    def dispatch(self) -> Dispatch:
        return Dispatch(self, self.outbox, self._send)

    def _send(self, run_id: str, event: str, value: object) -> object:
        return self.family.send(run_id, event, value)  # which stands on what asks for runs

    @cached_once
    def asking(self) -> Asking:
        return Asking(self, self.dispatch)

    @cached_once
    def family(self) -> Family:
        return Family(self, self.outbox, self.dispatch)

    @cached_once
    def fibers(self) -> Fibers:
        return Fibers(self, self.alarms)

    @cached_once
    def schedules(self) -> Schedules:
        return Schedules(self, self.outbox, self.alarms, self.ready)

    @cached_once
    def callback_queue(self) -> CallbackQueue:
        return CallbackQueue(self, self.outbox, self.alarms, self.ready)

    # coming up

    async def ready(self) -> None:
        # Everything else of this life waits for it. What `on_start` raises is raised to all who wait.
        if self.is_up:
            return
        if self._up is None:
            # code that was imported here before needs no thread: an instant child is up at once, without a task
            if type_of(self.agent_id) in self.services.loaded and not self._constructed_for_start():
                self.is_up = True
                return
            self._up = self.tasks.start_awaited(self._come_up())
            # asyncio would log an error that has no taker: all that waited for it may have been cancelled
            self._up.add_done_callback(lambda task: None if task.cancelled() else task.exception())
        await asyncio.shield(self._up)  # of those that wait, one that is cancelled does not cancel it for the others

    def _constructed_for_start(self) -> bool:
        # Make the author's object; whether more is to be done before it can work.
        agent_class = load_type(type_of(self.agent_id), self.code_dir)
        self.agent = agent = agent_class()
        vars(agent)["_perdure"] = self  # the one attribute of ours
        fresh = self._is_first_life and self._storage is None
        self._watch = self._watch_over
        if self._storage is not None:
            self._watch_over(self._storage.state)
        has_start = overrides(agent_class, "on_start") or agent.__perdure_version__ > FIRST
        return has_start or not (fresh or not self.has_storage)

    def _watch_over(self, state: State) -> None:
        self.state_watch.begin(state)

    async def _come_up(self) -> None:
        if self.agent is None:  # its code is imported on a thread, so that the host goes on answering meanwhile
            await self.threads.run(lambda: check_class(load_type(type_of(self.agent_id), self.code_dir)))
            self.services.loaded.add(type_of(self.agent_id))
            self._constructed_for_start()
        if self.has_storage:
            await self.written(self._read_storage, Rank.CALL)  # a caller may be waiting
        await bring_up_to_date(self, self.outbox)
        if self.has_storage:
            self.outbox.flush()
        if self.overrides("on_start"):
            await self._call_on_start()
        self.is_up = True
        if self.has_storage:
            self._take_up_jobs()
            self.agent._perdure_woken()

    async def _call_on_start(self) -> None:
        # Everything of a life waits for `on_start`. So one that waits for another agent that waits for this one (a child that calls its
        # parent back) would hold up all of them for ever. Sync code cannot be cancelled; its storage and the runtime are closed to it, and
        # as long as its thread goes on its host counts as worn.
        activity = Activity(f"{self.agent_id}/{self.incarnation}", is_start=True)
        ACTIVITY.set(activity)
        timeout_ms = self.limits.on_start_timeout_ms
        try:
            starting = self.bounded(self.call(self.agent.on_start))
            await in_time(starting, timeout_ms, StartTimedOut(self.agent_id, timeout_ms))
        finally:
            activity.is_start = False  # a task of its own that goes on declares nothing any more
        if self.has_storage and self.storage.records().keys(SCHEDULE):
            await self.written(self.schedules.let_go_of_undeclared, Rank.CALL)

    def _read_storage(self) -> None:
        self.storage.records()  # the property opens it, beside the loop

    def _take_up_jobs(self) -> None:
        records = self.storage.records()
        for part, kind in JOBS:
            if self._has(part) or records.keys(kind):
                getattr(self, part).woken()

    async def wake(self) -> None:
        _, problem = await tried(self.ready())
        if problem is not None:
            self.trouble("on_start", problem)
            if self._has_mail:
                self.mail.refuse(problem)
            self.alarms.come_back()
            self.leave()
            return
        self.services.peer.push_later(Awake(self.agent_id, self.incarnation))
        self.touch()

    # a run

    def begin_run(
        self,
        run_id: str,
        attempt: int,
        body: bytes,
        options: dict[str, Any],
        *,
        collect: bool,
        after: int,
        over_ms: float,
        undo: list[str] | None,
    ) -> None:
        """Begin to carry an attempt; its end is reported."""
        self._is_first_life = attempt == 1 and not self._runs
        self._runs[run_id] = attempt
        asked = (
            options.get("tool_call"),
            options.get(CARRIED, ""),
            options.get("behalf", ()),
            options.get("joined", ()),
        )
        run = RunContext(
            self,
            run_id,
            attempt,
            self.incarnation,
            *asked,
            began_by=options.get(BEGAN_BY, ""),
            after=after,
            over_ms=over_ms,
        )
        run.count_handled = self._count_handled
        self._attempts[run_id] = run
        self.spawn(self._carry(run, body, after, undo, collect=collect), Rank.OPENING)

    async def _carry(self, run: RunContext, body: bytes, after: int, undo: list[str] | None, *, collect: bool) -> None:
        """Carry an attempt and say what it came to; a child that has nothing else to do leaves in the same breath. One that only hands over
        what an earlier life had done comes up after that if the earlier life left other work too, or leaves that to the next one."""
        report = await carry(self, self.ready, run, body, after, undo, collect=collect)
        if self._attempts.get(run.run_id) is run:
            del self._attempts[run.run_id]
        has_left_work = report is not None and not self.is_up and self.alarms.finds_work()
        if isinstance(report, Unstarted):
            self.alarms.owe("start", owes=has_left_work and report.cause == COLLECTED_NOTHING)
            self._leave_with(report)
        elif report is not None:
            owes = self._has("alarms") and self.alarms.is_owing
            if not (has_left_work or self._has_mail or self.tasks.has_others or owes):
                self._leave_with(report._replace(released=True))
                return
            self.push(report)
            self.touch()
            if has_left_work:
                self.spawn(self.wake())

    def _leave_with(self, farewell: Report) -> None:
        # Everything is durable, or becomes so with the last word. Nothing reaches this life any more meanwhile.
        self.is_leaving = True
        self._gone(self)
        if self._storage is not None and self.services.is_crowded:  # closing may write, which would hold up the loop
            self.services.leaving.add((self.agent_id, self.incarnation))
            self.services.tasks.start(self._close_and_say(farewell))
        else:
            self.close()
            self._say(farewell)

    async def _close_and_say(self, farewell: Report) -> None:
        await self.threads.write(self.close, Rank.WORK)
        self.services.leaving.discard((self.agent_id, self.incarnation))
        self._say(farewell)

    def _say(self, farewell: Report) -> None:
        if self._has("alarms"):
            self.alarms.say()
        self.push(farewell)

    def deliver(self, said: Deliver) -> None:
        events, letters = list[Letter](), list[Letter]()
        for letter in (Letter(*mail) for mail in said.mails):
            (events if letter.slot.startswith(EVENT) else letters).append(letter)
        self._deliver_events(events)
        if letters:
            self.mail.deliver(letters)

    def _deliver_events(self, letters: list[Letter]) -> None:
        # An event for a run that is over comes again in the next attempt.
        of_runs: dict[str, list[SentEvent]] = {}
        for letter in letters:
            name, sent = letter.slot.removeprefix(EVENT), letter.content
            event = SentEvent(letter.mail_id, name, sent["sender"], sent["body"], sent["seq"])
            of_runs.setdefault(letter.run["run_id"], []).append(event)
        for run_id, events in of_runs.items():
            if run_id in self._attempts:
                self._attempts[run_id].waits.deliver(events)

    def _count_handled(self, count: int) -> None:
        self.mail.count_handled(count)

    def pause_run(self, run_id: str) -> None:
        run = self._attempts.get(run_id)
        if run is not None:
            run.waits.pause()

    def clock_was_set(self) -> None:
        for run in self._attempts.values():
            if run.has_waits:
                run.waits.clock_was_set()
        if self._has("fibers"):
            self.fibers.clock_was_set()
        if self._has("alarms"):
            self.alarms.clock_was_set()

    @property
    def _has_mail(self) -> bool:
        return self._has("mail") and not self.mail.is_empty

    def _has(self, part: str) -> bool:
        return part in vars(self)  # a `cached_once` that was looked at

    # calls and signals

    async def answer(self, ref: str, method_name: str, body: bytes, trace: str = "") -> None:
        # Where telemetry is on, what it does stands where the caller does in a trace.
        self._enter(trace)
        reply, problem = await tried(self._answer(ref, method_name, body))
        if problem is None:
            self.services.answer(ref, True, reply)
        else:
            if not isinstance(problem, PerdureError):
                self.log("call", f"its method {method_name}", problem)
            self.services.answer(ref, False, error_to_plain(problem, self.limits.error_chars_max))
        self.touch()

    def _enter(self, trace: str) -> None:
        place = context_of(trace) if self.services.world.telemetry.is_on else None
        if place is not None:
            self.services.world.telemetry.enter(place)

    async def look(self, method_name: str, body: bytes, trace: str = "") -> bytes | None:
        # What goes wrong is told by the supervisor's way, which the caller takes next.
        self._enter(trace)
        reply, problem = await tried(self._asked_here(method_name, body))
        await self.services.until_durable()  # this answer goes past the supervisor
        self.touch()
        return reply if problem is None else None

    async def _asked_here(self, method_name: str, body: bytes) -> bytes:
        await self.ready()
        mark = method_key(type(self.agent), method_name)
        if not mark:
            raise BadRequest("method", f"{method_name} is not one that a host is asked for")
        if mark == BEGINS and self.services.begins_nothing:
            return NOT_NOW
        return await self._answer(self.dice.token(), method_name, body)

    async def _answer(self, ref: str, method_name: str, body: bytes) -> bytes:
        if method_name != FORGET:
            await self.ready()
        ACTIVITY.set(Activity(f"call/{ref}"))
        if method_name.startswith("\0"):
            answered = await self.family.answer(method_name, body)
            if answered is not None:
                return answered
        arguments, returned = exposed_call(type(self.agent), method_name, body)
        method = getattr(self.agent, method_name)
        call = self.call if method.__perdure_exposed__["concurrent"] else self.call_in_turn
        outcome = await call(method, *arguments.args, **arguments.kwargs)
        reply = returned.encode("return", outcome, self.limits.output_bytes_max)
        if not method_key(type(self.agent), method_name):
            return reply
        return append_route(reply, DirectRoute(self.services.peer.transport.route, self.incarnation))

    async def signal(self, info: RunInfo, snapshot: JsonObject) -> None:
        # What it raises stops nothing (spec W-54).
        if "live_data" in snapshot:
            snapshot["data"] = snapshot.pop("live_data")
        _, problem = await tried(self.ready())
        if problem is None:
            _, problem = await tried(self.call_in_turn(self.agent.on_progress, info, snapshot))
        if problem is not None:
            self.trouble("on_progress", problem)

    # another storage

    def restore(self, path: Path) -> None:
        # What is planned in the copy (schedules, the queue) begins, too.
        if not self.services.agent_storages.exists(self.agent_id):
            self.reopen()  # a handle on nothing would be in the way
        self.services.agent_storages.restore(self.agent_id, path)
        self.on_loop(self.schedules.storage_retry.look)
        self.on_loop(self.callback_queue.storage_retry.look)

    def fork(self, name: str) -> Awaitable[None]:
        """Give another agent a copy of what is committed now. Where storages are carried, the supervisor is asked to."""
        target = agent_id(type_of(self.agent_id), check_id("name", name, self.limits.id_max))
        self.storage.checkpoint()
        if not self.services.is_carried:
            self.services.agent_storages.fork(self.agent_id, target)
            return self.done()
        place = self.services.carried.new_place()
        self.services.agent_storages.copy_out(self.agent_id, target, place)
        content = self.services.carried.taken(self.agent_id, place)
        asked = CopyStorage(self.agent_id, self.incarnation, target, first_of_copy(self.dice.roll()), content)
        if self.services.is_on_loop:
            return self.services.supervisor.question(asked)  # as with a directory it is done if nobody awaits it, too
        return self.bridge(self.ask(asked))

    # leaving

    @property
    def may_sleep(self) -> bool:
        # An agent that is coming up has work to do.
        return not (self.tasks or self._vigils or self.is_leaving or self._has_mail) and self.is_up

    def leave(self) -> None:
        self.faults.at(KillPoint.MID_PASSIVATION, self.agent_id)
        self._leave_with(Released(self.agent_id, self.incarnation))

    def _failed(self, problem: BaseException) -> None:
        """A task of this life failed unexpectedly: what the life owes is for the next one, which begins after a while. What
        was being done has failed once more, so it is parked in the end."""
        if not self.is_leaving:
            self.alarms.rest()
            self.log("life", "a task, which ends this life of it", problem)
            if self._has("mail"):
                self.mail.failed(problem)
            self.services.tasks.start(self.stop())

    def abandon(self) -> list[asyncio.Task[object]]:
        self.is_leaving = True
        return self.tasks.cancel()

    async def stop(self) -> None:
        """End all work of this life and leave. Async code that does not let itself be cancelled keeps the place, and its result may still
        count; after a while its storage and the runtime are closed to it. Sync code cannot be cancelled: they are closed to it at once, and
        as long as its thread goes on its host counts as worn."""
        self.is_leaving = True
        self.faults.at(KillPoint.MID_CANCEL, self.agent_id)
        left = self.tasks.cancel()
        if left:
            await asyncio.wait(left, timeout=self.limits.teardown_grace_ms / 1000)
            going_on = [task for task in left if not task.done()]
            self.refuse(going_on)
            if going_on:
                await asyncio.wait(going_on)
        if not self.is_of_run and not self.is_broken and not self.outbox.is_empty:
            self.alarms.owe("outbox", owes=True)
        self.leave()
