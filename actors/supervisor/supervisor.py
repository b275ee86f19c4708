"""The supervisor: the one process that decides what must survive. A plain class; a world wraps it.

Its turn has one order: take everything that has come in → decide and fold, fact by fact → **commit** → perform what is outstanding →
answer.
Nothing leaves before the facts behind it are durable, and nothing is remembered that the ledger does not say, but for pacing. A
crash at any line is therefore a boot: the snapshot and the facts after it give the same view, the hosts say hello, and a sweep performs
what is still outstanding. An error of a commit ends the life at once, because after it the content of the disk is unknown.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from perdure.actors.events.observability import Channel, EventType
from perdure.actors.link.messages import (
    REPORTS,
    Ask,
    CallAnswered,
    ClientHello,
    CodeFiles,
    CopyStorage,
    Exists,
    HostHello,
    Message,
    Patches,
    Refused,
    Reply,
    Report,
    StorageUnread,
    Wait,
)
from perdure.actors.link.questions import Books
from perdure.actors.link.wire import content_of, error_to_plain
from perdure.actors.ports import MOVED, STOPPED, Clock, Fleet, KillPoint, World
from perdure.actors.supervisor.calls import CallRouter, Calls
from perdure.actors.supervisor.checkpoints import Checkpoints, RunExpiry
from perdure.actors.supervisor.effect_executor import EffectExecutor, SweepQueue
from perdure.actors.supervisor.intake import Intake, batch_alike
from perdure.actors.supervisor.pool import NodeDrains, Pool
from perdure.actors.supervisor.publisher import Publisher
from perdure.actors.supervisor.queries import WISH_S, BackupService, Queries
from perdure.actors.supervisor.replication import Replication
from perdure.actors.supervisor.sessions import Arrived, PeerSession, Sessions
from perdure.actors.supervisor.snapshot_loader import SnapshotLoader
from perdure.actors.supervisor.storage_carrier import StorageCarrier
from perdure.actors.supervisor.told_waits import ToldWaits
from perdure.actors.tasks import Tasks, awaited
from perdure.actors.telemetry.run_spans import RunSpans
from perdure.actors.upkeep import upkeep_later, upkeep_pause, upkeep_s
from perdure.ledger import (
    ATTEND_S,
    BATCH_MIN,
    INLINE_MAX,
    Adopt,
    AnswerAsk,
    BadRequest,
    BucketUnreachable,
    CarryingStore,
    Deed,
    Ended,
    Fact,
    Overloaded,
    Payload,
    Request,
    Row,
    Send,
    Steer,
    Stimulus,
    StorageError,
    Store,
    SupervisorStarted,
    SupervisorStopped,
    Tell,
    Tick,
    View,
    WorldError,
    apply_fact,
    arm,
    ask_told,
    assign_hosts,
    count_of,
    decide,
    end_together,
    everything,
    expand_rows,
    has_older_code,
    older_awake,
    outstanding,
    record_fact,
    request_together,
    restore,
    steer,
)
from perdure.ledger.storage.agent_storages import AgentStorages
from perdure.policies import (
    CommitPace,
    LedgerTime,
    Limits,
    is_retention_on,
    linger_ms,
    pace_after,
    turn_size_after,
    with_leap,
)

if TYPE_CHECKING:  # it needs what reaches buckets
    from perdure.ledger import ReplicatedStore

BRIEF_MAX: Final = 16  # facts that are encoded and written in less time than a thread takes to wake
LOOK_MS: Final = 2_000  # until the clocks are looked at again, whatever the timers say
PASSES: Final = 2  # of the loop after a turn: its answers leave, and peers are heard, before the next one
CODE_WAIT_MS: Final = 10_000  # after a boot, for the first program to come with its code

_WAITS: Final = (
    "%s has not answered for %.0f s (%s): what was asked of this runtime before waits until it answers, and takes effect then; what is"
    " asked now is refused"
)
_UNANSWERED: Final = (
    "%s has not answered for %.0f s (%s), and you go on waiting: what was asked before takes effect when it answers"
)
log = logging.getLogger("perdure.supervisor")


class LedgerClock:
    """The time of the ledger in one supervisor life. It begins at the wall's time, never before the last fact, and follows the wall clock
    (`policies.ledger_time`)."""

    def __init__(self, clock: Clock, view: View) -> None:
        self._clock, self._view = clock, view
        self.began_ms = max(clock.now_ms(), view.at_ms)
        self._time = LedgerTime(self.began_ms, clock.steady_ms())

    def now_ms(self) -> int:
        return self._time.now_ms(self._clock.steady_ms())

    def follow(self) -> None:
        wall_ms = self._clock.now_ms()
        leap = self._time.leap(wall_ms, self._clock.steady_ms())
        if leap is not None:
            self._time = self._time.after(leap)
            self._view.leaps = with_leap(self._view.leaps, leap)
            log.info("the wall clock is %.1f s ahead: it was set, or the machine slept", leap.by_ms / 1000)

    def tick(self) -> Tick:
        wall_ms = self._clock.now_ms()
        return Tick(self.now_ms() - wall_ms)

    # The ledger's time when the next timer or alarm is due; infinity if there is none.
    def due_ms(self) -> float:
        return min(self._view.timers.next_at_ms, self._view.alarms.next_at_ms + self.tick().behind_ms)


class Supervisor:
    """One life of the supervisor.

    Args:
        store: the durable ledger; used by this life alone.
        agent_storages: where agents' storages lie; the supervisor only looks which there are, and deletes what was cleared.
    """

    def __init__(self, world: World, fleet: Fleet, store: Store, agent_storages: AgentStorages, limits: Limits) -> None:
        limits = limits.for_cores(world.cores)
        self.world, self.limits, self.store = world, limits, store
        self.view = View()
        self.sessions = Sessions()
        self.findings: list[str] = []
        self._fleet, self._agent_storages = fleet, agent_storages
        self._tasks = Tasks("the supervisor")
        self._ready = asyncio.Event()
        self._sooner = asyncio.Event()
        self._stops = False
        self._looks_at_ms = math.inf  # when the timers are looked at again
        self._stimuli: list[Stimulus] = []
        self._turn_size = limits.turn_max
        self._pace = CommitPace()
        self._carrier: StorageCarrier | None = None
        self._replication: Replication | None = None

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    async def exchange(self, frame: bytes) -> bytes:
        """Take a peer's frame and answer it. The call is held open while there is nothing to say."""
        await self._ready.wait()
        return await self.sessions.exchange(frame)

    async def serve(self) -> str:
        """Boot, then take turns until the end of this life. Returns why it ended."""
        async with self._tasks:
            await self._boot()
            for job in (self._turns(), self._sweeps(), self._timers(), self.pool.heartbeat.serve()):
                self._tasks.start(job)
            if is_retention_on(self.limits):
                self._tasks.start(self.expiry.serve())
            if self._replication is not None:
                self._tasks.start(self._replication.serve())
                self._tasks.start(self._replication.watch())
            if self._carrier is not None:
                self._tasks.start(self._attend(self._carrier))
            self._ready.set()
            try:
                return await self._tasks.over()
            finally:
                self.publisher.measure(self.world.metrics)

    async def _boot(self) -> None:
        boot = await self.world.threads.commit(self.store.boot)
        self.findings = list(boot.findings)
        self.view = restore(boot)
        await self._begin_to_carry()
        self.clock = LedgerClock(self.world.clock, self.view)
        self.view.awake_at_ms = self.clock.began_ms
        self.view.code_due_ms = self.clock.began_ms + CODE_WAIT_MS
        self.run_spans = RunSpans(self.view, self.world.telemetry)
        self.run_spans.take_up(boot.rows)
        self.publisher = Publisher(self.view, self.sessions, self.clock.now_ms)
        world, view, sessions, store = self.world, self.view, self.sessions, self.store
        self.sweep_queue = SweepQueue(view)
        self.effect_executor = EffectExecutor(world, view, sessions, self.store, self.limits, self._carrier)
        self.pool = Pool(world, self._tasks, self._fleet, view, sessions, self.limits, self.report, self.publisher)
        self.node_drains = NodeDrains(self._fleet, view, sessions, world.clock, self.pool.give_up, self._move)
        self.snapshot_loader = SnapshotLoader(world, view, self.store, has_snapshot=boot.meta is not None)
        self.checkpoints = Checkpoints(
            world, self._tasks, view, self.store, self._agent_storages, self.limits, self.snapshot_loader,
            carrier=self._carrier, behind=count_of(boot.rows), append=self._record, wake=sessions.arrived.set,
            replication=self._replication,
        )  # fmt: skip
        self.expiry = RunExpiry(
            world, view, self.store, self.limits, self.snapshot_loader, self.checkpoints, self.clock.now_ms, self.report
        )
        self.backup_service = BackupService(
            world, view, self.store, self.checkpoints, self._agent_storages.disk.directory, lost=self.pool.heartbeat.lost,
            wake=sessions.arrived.set,
        )  # fmt: skip
        books = Books(view, store, self.limits, self.findings, self.clock.now_ms, self.backup_service.stored_below)
        self.queries = Queries(world, self._tasks, sessions, books, self._fleet, self.backup_service, self._replication)
        ways = CallRouter(view, self._agent_storages.exists if self._carrier is None else self._carrier.exists)
        self.calls = Calls(view, sessions, ways)
        self.pool.refuse_calls, self.pool.awaits_call = self.calls.refuse_unhosted, self.calls.awaits
        unheeded = self.effect_executor.unheeded
        self.told_waits = ToldWaits(view, sessions, self.calls, self.publisher.followers, unheeded)
        self.intake = Intake(view, sessions, self.limits, self.calls, self.queries, self.publisher, ways)
        self._told_of_commits = list(self._observers())
        await self.pool.adopt()
        self.sessions.epoch = self.view.epoch + 1
        await self._record([SupervisorStarted(self.view.epoch + 1, asdict(self.limits))])
        self.publisher.booted = {
            "epoch": self.view.epoch,
            "live_runs": self.view.live,
            "elapsed_ms": self.clock.now_ms() - self.clock.began_ms,
            "findings": self.findings,
        }
        self._stimuli.append(self.clock.tick())
        self.sessions.arrived.set()

    async def _begin_to_carry(self) -> None:
        if self.store.carries_storages:
            self._carrier = StorageCarrier(self.view, cast("CarryingStore", self.store))
            await self.world.threads.commit(self._carrier.begin)
        if self.store.is_followed:
            followed, wake = cast("ReplicatedStore", self.store), self.sessions.arrived.set
            self._replication = Replication(
                self.world, self._tasks, self.view, followed, lost=self._lost, wake=wake,
                hold_back=partial(self.sessions.hold_back, WISH_S),
            )  # fmt: skip

    def _lost(self, for_ms: float) -> None:
        self.pool.heartbeat.lost(for_ms)

    async def stop(self) -> None:
        """Be told to end, as all hosts will be: what they have at work loses no attempt by it."""
        await self._ready.wait()
        self._stops = True
        self.sessions.arrived.set()

    def _move(self) -> None:
        log.info("the supervisor ends, to live on another node: its own drains")
        self._tasks.finish(MOVED)

    def report(self, stimulus: Stimulus) -> None:
        """Something was seen; it is decided in the next turn."""
        self._stimuli.append(stimulus)
        self.sessions.arrived.set()

    async def _turns(self) -> None:
        await self.snapshot_loader.recall_sources(list(self.view.runs.values()))
        await self._perform(everything(self.view))
        while True:
            await self.sessions.arrived.wait()
            if self._carrier is not None:
                await self._linger()
            self.sessions.arrived.clear()
            await self._timed(self._turn)
            if self._stops:
                await self._record([SupervisorStopped(self.view.epoch)])
                self._tasks.finish(STOPPED)
                return
            for _ in range(PASSES):
                await asyncio.sleep(0)
            if self.checkpoints.has_step:
                await self._timed(self.checkpoints.between_turns)
            await self.backup_service.between_turns()
            if self._replication is not None:
                await self._replication.between_turns()

    async def _linger(self) -> None:
        loop, sessions = asyncio.get_running_loop(), self.sessions
        while pause_ms := linger_ms(self._pace, loop.time() * 1000, sessions.waiting, self.limits):
            sessions.arrived.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await sessions.arrived.wait()

    async def _timed(self, step: Callable[[], Awaitable[None]]) -> None:
        began_s, done = asyncio.get_running_loop().time(), self.queries.work
        commit_ms = done.commit_ms
        await step()
        took_ms = (asyncio.get_running_loop().time() - began_s) * 1000 - (done.commit_ms - commit_ms)
        done.longest_turn_ms = max(done.longest_turn_ms, took_ms)

    async def _turn(self) -> None:
        # What is waiting, in each peer's order, as far as a short turn gets. The rest has the next turn.
        self.pool.heartbeat.notice_lateness()
        arrived = self.sessions.take(self._turn_size)
        seen, self._stimuli = self._stimuli, []
        await self.snapshot_loader.recall(arrived)
        at_ms, began_s = self.clock.now_ms(), asyncio.get_running_loop().time()
        rows: list[Row] = []
        payloads: list[Payload] = []
        with self.sessions.deciding():
            for stimulus in seen:
                self._decide(stimulus, at_ms, rows, payloads)
            self._receive_all(arrived, at_ms, rows, payloads)
            if not self.queries.is_winding_down:
                rows += apply_fact(self.view, assign_hosts(self.view, at_ms, self.limits), at_ms)
        touched = list(self.view.touched)
        self.view.touched.clear()
        arm(self.view, touched, self.limits)
        commit_ms = await self._append(rows, payloads) + await self._until_answers_may_go(arrived)
        self.sessions.made_durable(arrived)
        if self._carrier is not None:
            if commit_ms:
                count, awake = len(arrived), len(self.view.awake)
                self._pace = pace_after(self._pace, began_s * 1000, count, awake, self.limits)
            self._carrier.pass_on_code(self.sessions.by_peer.values())
        await self._perform(touched)
        self.sessions.seq = self.view.seq
        for observe in self._told_of_commits:
            observe(rows, touched)
        self.expiry.seen(seen)
        for session in {session.peer_id: session for session, _, _ in arrived}.values():
            session.committed()
        self.sessions.flush()
        if self.clock.due_ms() < self._looks_at_ms:
            self._sooner.set()
        took_ms = (asyncio.get_running_loop().time() - began_s) * 1000 - commit_ms
        self._turn_size = turn_size_after(self._turn_size, len(arrived), took_ms, self.limits)

    # Whom a commit is told to, in this order. It matters where a comment says so.
    def _observers(self) -> Iterator[Callable[[list[Row], list[str]], None]]:
        yield lambda rows, _: self.publisher.publish(rows)
        yield lambda rows, _: self.queries.changes.note(rows)  # before questions are answered: one asks for the changes
        if self.world.telemetry.is_on:
            yield lambda rows, _: self.run_spans.see(expand_rows(rows))
        # Before the hand-over: what a lost host had, and may be repeated, goes with it.
        yield lambda *_: self.calls.hosts_changed()
        yield lambda _, touched: self.calls.seen(touched)
        if (carrier := self._carrier) is not None:
            yield lambda _, touched: carrier.ended(touched)
        if (replication := self._replication) is not None:
            yield lambda _, touched: replication.touch(touched)
        yield lambda *_: self._unless_winding_down(self.calls.hand_over)
        # Behind deliveries, which were effects: mail that is on its way is not forgotten.
        yield lambda *_: self.intake.tell_settled()
        yield lambda *_: self.queries.answer_all()
        yield lambda *_: self._unless_winding_down(self.pool.ensure)

    def _unless_winding_down(self, begin: Callable[[], None]) -> None:
        if not self.queries.is_winding_down:
            begin()

    def _receive_all(self, arrived: Sequence[Arrived], at_ms: int, rows: list[Row], payloads: list[Payload]) -> None:
        for session, messages in batch_alike(arrived, self.limits):
            if len(messages) < BATCH_MIN or not self._receive_together(session, messages, at_ms, rows):
                for message in messages:
                    self._receive(session, message, at_ms, rows, payloads)

    def _receive(
        self, session: PeerSession, message: Message, at_ms: int, rows: list[Row], payloads: list[Payload]
    ) -> None:
        if type(message) in REPORTS:
            self._decide(cast("Report", message), at_ms, rows, payloads)
        elif isinstance(message, Request):
            self._requested(session, message, at_ms, rows, payloads)
        elif isinstance(message, Ask):
            wish = self.intake.asked(session, message)
            if wish is not None:
                self._ask(session, message.ref, wish, at_ms, rows)
        elif isinstance(message, Patches):
            assert self._carrier is not None, "a host carries its storages because its supervisor does"
            self._carrier.take(session.peer_id, message.patches)
        elif isinstance(message, StorageUnread):
            self.effect_executor.unread[message.agent_id] = session, math.inf if message.inline else INLINE_MAX
        elif isinstance(message, CodeFiles):
            assert self._carrier is not None, "only a cache is told to others"
            self._carrier.take_code(session, message.files)
        else:
            if self._carrier is not None and isinstance(message, HostHello | ClientHello):
                self._carrier.greet(session)
            for seen in self.intake.receive(session, message):
                count = len(rows)
                self._decide(seen, at_ms, rows, payloads)
                if isinstance(seen, Adopt) and len(rows) > count:  # an agent at rest wakes with what came
                    self.sessions.let_go(older_awake(self.view, None))

    # Returns whether they were decided.
    def _receive_together(self, session: PeerSession, messages: list[Message], at_ms: int, rows: list[Row]) -> bool:
        if isinstance(messages[0], Ended):
            rows += apply_fact(self.view, end_together(self.view, cast("list[Ended]", messages), self.limits), at_ms)
            return True
        asked = cast("list[Request]", messages)
        new = apply_fact(self.view, request_together(self.view, asked, self.limits), at_ms)
        rows += new
        for request in asked if new and asked[0].wait else ():
            self.sessions.wait(session, request.run_id)
        return bool(new)

    def _requested(
        self, session: PeerSession, request: Request, at_ms: int, rows: list[Row], payloads: list[Payload]
    ) -> None:
        count, existed = len(rows), request.run_id in self.view.runs
        try:
            self._decide(request, at_ms, rows, payloads)
        except (BadRequest, WorldError) as problem:
            session.say(Refused(request.run_id, error_to_plain(problem), content_of(request)))
            if isinstance(problem, Overloaded):
                told = {"waiting": problem.waiting, "retry_after_ms": problem.retry_after_ms}
                self.publisher.happened(Channel.SUPERVISOR, EventType.SUPERVISOR_OVERLOADED, "", told)
        else:
            run = self.view.runs[request.run_id]
            is_older = (
                existed
                and not request.parent
                and run.is_live
                and not run.begins_anew
                and has_older_code(self.view, run)
            )
            if request.wait:  # a peer that waits is told the end
                self.sessions.wait(session, request.run_id)
                self.view.touched[request.run_id] = None
            if is_older or (not request.wait and len(rows) == count):  # where a run that existed stands (spec W-20)
                session.say(Exists(request.run_id, str(run.status), is_older))

    def _ask(
        self, session: PeerSession, ref: str, wish: Stimulus | Steer | CopyStorage, at_ms: int, rows: list[Row]
    ) -> None:
        if isinstance(wish, Tell | Send) and wish.mail_id in self.snapshot_loader.posted:
            session.say(Reply(ref, ok=True, value=None))
            return
        told: object = None
        try:
            if isinstance(wish, Steer):
                told = steer(self.view, wish, partial(self._decided, at_ms, rows))._asdict()
            elif not isinstance(wish, CopyStorage):
                self._decide(wish, at_ms, rows, [])
                if isinstance(wish, AnswerAsk):  # whoever answers is told how the question stands then
                    run = self.view.runs[wish.run_id]
                    told = next(ask_told(run, ask) for ask in run.asks if ask.number == wish.number)
            else:
                assert self._carrier is not None, "with a directory a host makes copies itself"
                self._carrier.copy(session.peer_id, wish)
        except (BadRequest, StorageError) as problem:
            session.say(Reply(ref, ok=False, value=error_to_plain(problem)))
        else:
            session.say(Reply(ref, ok=True, value=told))

    def _decided(self, at_ms: int, rows: list[Row], deed: Deed) -> list[str]:
        count = len(rows)
        self._decide(deed, at_ms, rows, [])
        return [row.kind for row in rows[count:]]

    def _decide(self, stimulus: Stimulus, at_ms: int, rows: list[Row], payloads: list[Payload]) -> None:
        new = apply_fact(self.view, decide(self.view, stimulus, at_ms, self.limits), at_ms)
        rows += new
        for row in new:
            payload = _payload_of(row.kind, stimulus, self.limits)
            if payload is not None:
                payloads.append(payload)
                self.effect_executor.payloads[payload.run_id, payload.part] = payload.body

    async def _append(self, rows: list[Row], payloads: list[Payload]) -> float:
        """Make a group durable; how many milliseconds that took."""
        patches = () if self._carrier is None else self._carrier.due()
        if not rows and not patches:
            return 0.0
        self.world.faults.at(KillPoint.BEFORE_COMMIT)
        began_s = asyncio.get_running_loop().time()
        count = count_of(rows)
        is_brief = count <= BRIEF_MAX and not payloads and not self.sessions.inbox
        if self._carrier is None:
            await self.world.threads.commit(partial(self.store.append, rows, payloads), is_brief=is_brief)
        else:
            append = partial(self._carrier.append, rows, payloads, patches)
            await self._meanwhile(self.world.threads.commit(append), self._carrier.store.unreachable)
        took_ms = (asyncio.get_running_loop().time() - began_s) * 1000
        self.pool.heartbeat.lost(took_ms)
        took_ms += await self._until_followed()
        self.world.metrics.observe("commit_ms", took_ms)
        self.queries.work.commits += 1
        self.queries.work.commit_ms += took_ms
        self.world.faults.at(KillPoint.AFTER_COMMIT)
        self.checkpoints.committed(count + len(patches), sum(len(each.body) for each in payloads))
        return took_ms

    # An answer of a call speaks of what an agent has written.
    async def _until_answers_may_go(self, arrived: Sequence[Arrived]) -> float:
        is_late = self._replication is not None and self._replication.is_late
        is_told = is_late and any(isinstance(each.message, CallAnswered) for each in arrived)
        return await self._until_followed() if is_told else 0.0

    # Wait until the bucket is no further behind than it may be; how many milliseconds that took.
    async def _until_followed(self) -> float:
        if self._replication is None or not self._replication.is_late:
            return 0.0
        began_s = asyncio.get_running_loop().time()
        await self._meanwhile(self._replication.caught_up(), self._replication.unreachable)
        took_ms = (asyncio.get_running_loop().time() - began_s) * 1000
        self.pool.heartbeat.lost(took_ms)
        return took_ms

    # Wait until a commit is in the bucket. When that does not answer, what clients ask for is refused, and questions are answered.
    async def _meanwhile(
        self, commit: Coroutine[object, object, None], unreachable: Callable[[], BucketUnreachable | None]
    ) -> None:
        committing, findings = awaited(commit), list(self.findings)
        try:
            while not (await asyncio.wait({committing}, timeout=LOOK_MS / 1000))[0]:
                trouble = unreachable()
                if trouble is not None and not self.told_waits.unanswered:
                    words = trouble.url, trouble.unanswered_s, trouble.trouble
                    log.warning(_WAITS, *words)
                    self.told_waits.unanswered = _UNANSWERED % words
                if trouble is not None:
                    self.findings[:] = [*findings, f"{trouble}. What is shown here may not be durable yet"]
                    await self._answer_meanwhile(trouble)
        finally:
            committing.cancel()  # nothing happens to it if it has ended
        self.findings[:], self.told_waits.unanswered = findings, ""
        committing.result()

    async def _answer_meanwhile(self, trouble: BucketUnreachable) -> None:
        waiting = [(each, run_id) for line in self.sessions.inbox.values() for each in line for run_id in _named(each)]
        asked = dict.fromkeys(run_id for each, run_id in waiting if not each.session.is_host)
        large = await self.snapshot_loader.recall_meanwhile(asked)
        mine = large.keys() - self.effect_executor.payloads.keys()
        self.effect_executor.payloads.update({part: large[part] for part in mine})
        self.intake.refuse_waiting(trouble, self._is_answered)
        for part in mine:
            self.effect_executor.payloads.pop(part, None)
        self.queries.answer_all()
        self.sessions.flush()

    # Whether a peer was told all there is to say of runs that exist, because that is durable already.
    def _is_answered(self, session: PeerSession, message: Request | Wait) -> bool:
        ids = message.run_ids if isinstance(message, Wait) else [message.run_id]
        runs = [self.view.runs.get(run_id) for run_id in ids]
        if any(run is None or run.last_seq > self.sessions.seq for run in runs):
            return False
        if isinstance(message, Wait):
            for run_id in ids:
                self.sessions.wait(session, run_id)
        else:
            at_ms = self.clock.now_ms()
            with suppress(BadRequest, WorldError):  # which is told next
                if next(decide(self.view, message, at_ms, self.limits), None) is not None:
                    return False
            self._requested(session, message, at_ms, [], [])
        at_hand = self.effect_executor.payloads
        ended = [run for run in runs if run is not None and not run.is_live]
        self.effect_executor.tell(
            run.run_id for run in ended if not run.large_output or (run.run_id, "output") in at_hand
        )
        return True

    async def _record(self, facts: Sequence[Fact]) -> None:
        await self._append([record_fact(self.view, fact, self.clock.now_ms()) for fact in facts], [])

    async def _perform(self, keys: list[str]) -> None:
        # A child's first attempt has nothing to be compared with, so nothing is looked up for it.
        agents = self.view.agents
        await self.snapshot_loader.look_up_reports(key for key in keys if key in agents and not self.view.is_new(key))
        at_ms = self.clock.now_ms()
        effects = list(outstanding(self.view, keys, at_ms))
        if effects or self.effect_executor.unread:
            self.world.faults.at(KillPoint.BEFORE_EFFECT)
            self.checkpoints.forgetting.extend(await self.effect_executor.perform(effects, at_ms))
            self.world.faults.at(KillPoint.AFTER_EFFECT)
        self.sweep_queue.seen(effects)
        self.effect_executor.forget_payloads(keys)

    async def _timers(self) -> None:
        # A timer that is not the next one wakes nobody when it is armed.
        while True:
            self._sooner.clear()
            self.clock.follow()
            now_ms, next_at_ms = self.clock.now_ms(), self.clock.due_ms()
            if next_at_ms <= now_ms:
                self._looks_at_ms = math.inf  # the next turn lets them fire
                self.report(self.clock.tick())
                await self._sooner.wait()
                continue
            self._looks_at_ms = min(next_at_ms, now_ms + LOOK_MS)
            timer = upkeep_later((self._looks_at_ms - now_ms) / 1000, self._sooner.set)
            try:
                await self._sooner.wait()
            finally:
                timer.cancel()

    async def _attend(self, carrier: StorageCarrier) -> None:
        while True:
            await asyncio.sleep(ATTEND_S)
            await self.world.threads.run(carrier.store.attend)

    async def _sweeps(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await upkeep_pause(min(self.limits.sweep_ms, self.limits.checkpoint_idle_ms) / 1000)
            now = loop.time()
            self.store.look()  # who waits hears of it, though nothing is committed meanwhile
            for key in self.sweep_queue.next_keys():
                self.view.touched[key] = None
            self.effect_executor.tidy()
            self.report(self.clock.tick())
            self.pool.retire_worn()
            self.node_drains.look()
            self.told_waits.look()
            self.checkpoints.sweep(now)
            self._forget_silent_clients()
            self.publisher.measure(self.world.metrics)

    def _forget_silent_clients(self) -> None:
        now_s = upkeep_s()
        for session in list(self.sessions.by_peer.values()):
            if not session.is_host and now_s - session.seen_s > self.limits.orphan_ms / 1000:
                self.sessions.drop(session.peer_id)
                self.publisher.drop(session.peer_id)


def _named(arrived: Arrived) -> list[str]:
    match arrived.message:
        case Request(run_id=run_id):
            return [run_id]
        case Wait(run_ids):
            return list(run_ids)
    return []


def _payload_of(kind: str, stimulus: Stimulus, limits: Limits) -> Payload | None:
    if kind == "RunRequested" and isinstance(stimulus, Request) and len(stimulus.input) > limits.inline_bytes_max:
        return Payload(stimulus.run_id, "input", stimulus.input)
    if kind == "RunSucceeded" and isinstance(stimulus, Ended) and len(stimulus.output or b"") > limits.inline_bytes_max:
        return Payload(stimulus.run_id, "output", stimulus.output or b"")
    return None
