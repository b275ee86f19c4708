"""A host: the process in which agents live while they are active. A plain class; a world wraps it.

It does what the supervisor says and reports what comes of it. Every command names the incarnation that it means, and a command for
another life is dropped. When the supervisor has been gone for too long the host ends itself: its agents' storages are then free for
the hosts that go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Container
from functools import partial
from pathlib import Path
from typing import ClassVar, Final

from perdure.actors.code.author_call import in_words, tried
from perdure.actors.code.naming import load_type
from perdure.actors.events.observability import Channel, ObservedEvent, subscribe
from perdure.actors.host.arriving_storages import ArrivingStorages
from perdure.actors.host.tenant import Tenant
from perdure.actors.life.host_services import HostServices
from perdure.actors.life.results import RunInfo
from perdure.actors.link.direct_calls import DirectCalls, DirectFrame, DirectReply, DirectRequest
from perdure.actors.link.link import Held
from perdure.actors.link.messages import (
    CallAnswered,
    CallAstray,
    CallCut,
    CodeFiles,
    Deliver,
    Happened,
    HoldStorage,
    HostHello,
    HostVitals,
    LogsRead,
    MailSettled,
    MakeCall,
    Message,
    Observed,
    Passivate,
    PauseRun,
    Ping,
    Prepare,
    Prepared,
    ReadLogs,
    RetireHost,
    Signal,
    Start,
    Starts,
    Stop,
    Wake,
)
from perdure.actors.link.peer import Peer
from perdure.actors.link.questions import LogsOf
from perdure.actors.link.supervisor_client import SupervisorClient
from perdure.actors.link.wire import error_to_plain
from perdure.actors.log_files import folder_key, read_logs
from perdure.actors.ports import Transport, World
from perdure.actors.tasks import Tasks, self_cancelled
from perdure.actors.upkeep import upkeep_pause, upkeep_s
from perdure.ledger import Ended, Released, StorageError, Unstarted, Waiting, agent_id, pack, unpack
from perdure.ledger.storage.agent_storages import AgentStorages
from perdure.policies import LEAP_MS, Limits, Rank

LEFT_KEPT = 100_000
GOODBYE_S = 1.0  # for the agents' code to end, when the host does


# ---------------------------------------------------------------- endpoint


LEFT_AFTER_S: Final = 60.0  # an asker that is silent for so long is forgotten
SEEN_MAX: Final = 100
"""How many calls are remembered, so that one that comes twice is passed over."""
Answer = Callable[[bytes | None], None]
"""Takes the answer to a question; None if the asker is to ask the supervisor."""


class DirectEndpoint:
    """Takes the questions that other processes ask a host itself (`actors.link.direct_calls`): many of them together.

    Args:
        begin: begins to answer one, and gives the answer once.
    """

    def __init__(self, begin: Callable[[DirectRequest, Answer], None]) -> None:
        self._begin = begin
        self._askers: dict[str, _Asker] = {}

    async def look(self, frame: bytes) -> bytes:
        # The call is held until there is an answer to any of the asker's questions, or it calls again.
        name, call, questions = DirectFrame(*unpack(frame))
        now_s = upkeep_s()
        asker = self._askers.setdefault(name, _Asker())
        if call in asker.calls:
            return pack([])
        asker.calls.append(call)
        asker.seen_s = now_s
        for number, look in questions:
            self._begin(DirectRequest(*look), partial(asker.answer, number))
        if call == max(asker.calls):
            asker.held.release()
            if not asker.answers:
                await asker.held.hold()
        for each in [each for each, one in self._askers.items() if now_s - one.seen_s > LEFT_AFTER_S]:
            del self._askers[each]
        return pack(asker.take())


class _Asker:
    def __init__(self) -> None:
        self.calls: deque[int] = deque(maxlen=SEEN_MAX)
        self.seen_s = 0.0
        self.answers: list[DirectReply] = []
        self.held = Held()

    def answer(self, number: int, value: bytes | None) -> None:
        self.answers.append(DirectReply(number, value))
        self.held.release()

    def take(self) -> list[DirectReply]:
        answers, self.answers = self.answers, []
        return answers


class EventForwarder:
    """Passes on the events of its own agents to the supervisor, as long as that has observers.

    Several hosts of a simulation live in one process, so what belongs to another host's agent is left to that one.

    Args:
        agents: the addresses of those that live here.
        say: tells the supervisor, from whichever thread.
    """

    def __init__(self, agents: Container[str], say: Callable[[Happened], None]) -> None:
        self._agents, self._say = agents, say
        self._leave: list[Callable[[], None]] = []

    def want(self, wanted: bool) -> None:
        for leave in self._leave:
            leave()
        self._leave = [subscribe(channel, self._teller(channel)) for channel in Channel] if wanted else []

    def _teller(self, channel: Channel) -> Callable[[ObservedEvent], None]:
        def tell(event: ObservedEvent) -> None:
            agent = agent_id(event.agent_type, event.agent_name)
            if agent in self._agents:
                pack(event.payload)  # what is no plain data is refused here, where it is logged, and not on its way
                self._say(Happened(str(channel), event.type, agent, dict(event.payload), event.at_ms))

        return tell


# ---------------------------------------------------------------- host


class Host:
    """One host's life.

    Args:
        agent_storages: the storages of the agents that come to live here.
        code_dir: where classes of notebooks lie, if there are any.
        package: what the code of the agents here came in, if it is not installed; their children need it too.
    """

    def __init__(
        self,
        world: World,
        transport: Transport,
        agent_storages: AgentStorages,
        host_id: str,
        limits: Limits,
        code_dir: Path | None = None,
        package: str = "",
    ) -> None:
        self.world, self.host_id, self.limits = world, host_id, limits
        self._tasks = Tasks(f"host {host_id}")
        self.supervisor = SupervisorClient(world.dice, self._tasks)
        self.peer = self.supervisor.peer = Peer(
            world, self._tasks, transport, host_id, limits, self._hello, self._receive
        )
        self.supervisor.direct_calls = DirectCalls(self._tasks, self.peer)
        self.services = HostServices(
            world, self._tasks, limits, agent_storages, self.peer, self.supervisor, code_dir, package
        )
        self.tenants: dict[str, Tenant] = {}
        self.services.agents = self.tenants
        self.arriving = ArrivingStorages(self.services, self._tasks, self._receive)
        self.peer.is_busy = lambda: world.threads.writes_waiting > 0 or not world.turns.is_free
        self._left: dict[str, int] = {}  # the newest life of each agent that has left: commands for it may be under way
        self._loop: asyncio.AbstractEventLoop | None = None
        self.look = DirectEndpoint(self._see).look
        self.relay = EventForwarder(self.tenants, lambda said: self.services.on_loop(lambda: self.peer.push(said)))

    async def serve(self) -> str:
        # Until it is retired or orphaned. Returns why it ended.
        self._loop = asyncio.get_running_loop()
        self.services.open()
        try:
            async with self._tasks:
                for job in (self.peer.serve(), self._tidy()):
                    self._tasks.start(job)
                return await self._tasks.over()
        finally:
            left = [task for tenant in self.tenants.values() for task in tenant.abandon()]
            if left:
                await asyncio.wait(left, timeout=GOODBYE_S)
            self.services.close()

    def _hello(self, again: bool) -> HostHello:
        # the supervisor that is greeted says anew whether there are observers, and what it had begun to say of storages
        self.arriving.begin_session()
        self._watched(Observed(observed=False, followed=False))
        self.services.say_rests_anew()
        for message in self.supervisor.ask_again() if again else ():
            if self._loop is not None:
                self._loop.call_soon(self.peer.push, message)
        vitals = self.world.vitals
        return HostHello(
            vitals.pid(),
            vitals.node(),
            vitals.rss_mb(),
            tenants=[
                *((tenant.agent_id, tenant.incarnation) for tenant in self.tenants.values()),
                *sorted(self.services.leaving),
            ],
            farewells=[
                said.incarnation
                for said in self.peer.pending
                if isinstance(said, Ended | Unstarted | Waiting | Released)
            ],
            waits=self.supervisor.waits,
            logs=folder_key(self.world.logs),
        )

    # what the supervisor says

    def _receive(self, message: Message) -> None:
        if self.arriving.defers(message):
            return
        command = self.COMMANDS.get(type(message))
        if command is not None:
            command(self, message)
        else:
            self.supervisor.receive(message)

    def _watched(self, said: Observed) -> None:
        self.relay.want(said.observed)
        self.services.is_followed = said.followed

    def _prepare(self, said: Prepare) -> None:
        self._tasks.start(self._load(said.types))

    async def _load(self, types: list[str]) -> None:
        # what goes wrong is told to the run that needs the code
        for each in types:
            await tried(self.world.threads.run(partial(_load_ahead, each, self.services.code_dir)))
        self.peer.push(Prepared())

    def _passivate(self, said: Passivate) -> None:
        # Let those go at once that have nothing to do, and those that are named as soon as they have nothing to do.
        self.services.begin_nothing(said.begin_nothing_s)
        meant = list(self.tenants) if said.agents is None else said.agents
        for tenant in [self.tenants[agent] for agent in meant if agent in self.tenants]:
            tenant.leaves_at_rest |= said.agents is not None
            if tenant.may_sleep:
                tenant.leave()

    def _retire(self, _: RetireHost) -> None:
        self._tasks.finish("retired")

    def _open(self, agent_id: str, incarnation: int, reported: int) -> Tenant | None:
        # An older life that is still here is over.
        tenant = self.tenants.get(agent_id)
        if tenant is not None and tenant.incarnation == incarnation:
            return tenant
        if tenant is not None:
            if tenant.incarnation > incarnation:
                return None
            self.forget(tenant)
            self._tasks.start(tenant.stop())
        if self._left.get(agent_id, 0) >= incarnation:
            return None  # it is over; the supervisor has yet to hear so
        try:
            tenant = Tenant(self.services, agent_id, incarnation, self.forget, reported)
        except StorageError as problem:
            self.services.report_failure("storage", agent_id, "opening its storage", problem)
            return None
        self.tenants[agent_id] = tenant
        return tenant

    def _starts(self, said: Starts) -> None:
        for run_id, incarnation, body in zip(said.run_ids, said.incarnations, said.inputs, strict=True):
            agent = agent_id(said.agent_type, run_id)
            self._receive(Start(agent, incarnation, run_id, 1, body, collect=False, options=said.options))

    def _start(self, said: Start) -> None:
        agent_id, incarnation, run_id, attempt, body, collect, options, reported, after, over_ms, undo = said
        known = self.tenants.get(agent_id)
        if known is not None and known.incarnation == incarnation and known.carries(run_id, attempt):
            return
        tenant = self._open(agent_id, incarnation, reported)
        if tenant is not None:
            tenant.has_asked = attempt > 1  # perhaps
            tenant.begin_run(run_id, attempt, body, options, collect=collect, after=after, over_ms=over_ms, undo=undo)

    def _wake(self, said: Wake) -> None:
        tenant = self._open(said.agent_id, said.incarnation, said.reported)
        if tenant is not None:
            tenant.lost_by, tenant.has_asked, tenant.was_stopped = said.cause, said.asks, said.excused
            tenant.spawn(tenant.wake())

    def _code(self, said: CodeFiles) -> None:
        if self.services.code is not None:
            self.services.code.put(said.files)

    def _hold_storage(self, said: HoldStorage) -> None:
        if said.agent_id not in self.tenants:
            self.arriving.hold(said)

    def _current(self, agent_id: str, incarnation: int) -> Tenant | None:
        # Mail and calls open no life of their own: the wake-up does, and comes before them.
        tenant = self.tenants.get(agent_id)
        return tenant if tenant is not None and tenant.incarnation == incarnation else None

    def _to_life(self, said: Deliver | PauseRun | MailSettled | Signal) -> None:
        tenant = self._current(said.agent_id, said.incarnation)
        if tenant is None:
            return
        match said:
            case Deliver():
                tenant.deliver(said)
            case PauseRun():
                tenant.pause_run(said.run_id)
            case MailSettled():
                tenant.mail.settled(said.mail_ids)
            case Signal():
                tenant.spawn(tenant.signal(RunInfo.from_ledger(said.run), said.snapshot))

    def _stop(self, said: Stop) -> None:
        agent_id, incarnation = said
        tenant = self._current(agent_id, incarnation)
        if (agent_id, incarnation) in self.services.leaving:
            return  # its goodbye is on its way
        if tenant is None:
            self._left[agent_id] = max(incarnation, self._left.get(agent_id, 0))  # its wake-up may come after its stop
            self.peer.push(Released(agent_id, incarnation))
        elif not tenant.is_leaving:
            tenant.is_leaving = True  # a second command to stop may be here already
            self._tasks.start(tenant.stop())

    def _call(self, said: MakeCall) -> None:
        # With `lost` another life of the agent, perhaps on another host, may have begun it before.
        ref, calls = said.ref, self.services.calls
        handed, tenant = calls.find(ref), self._current(said.agent_id, said.incarnation)
        if tenant is not None and tenant.is_broken and tenant.may_sleep:
            tenant.leave()  # the disk has refused something, and the next life opens the storage anew
            tenant = None
        if handed is not None and handed.answer is not None:
            self.peer.push_awaited(CallAnswered(ref, *handed.answer))
        elif handed is not None and not handed.is_over:
            return  # it is under way
        elif (handed is not None or said.lost) and not said.repeatable:
            self.peer.push_awaited(CallCut(ref))
        elif tenant is None:
            self.peer.push_awaited(CallAstray(ref))
        else:
            calls.begin(ref)
            task = tenant.spawn(tenant.answer(ref, said.method, said.body, said.trace), Rank.CALL)
            task.add_done_callback(partial(self._call_over, ref, tenant))

    def _see(self, asked: DirectRequest, answer: Answer) -> None:
        tenant = self._current(asked.agent_id, asked.incarnation)
        if tenant is None or tenant.is_leaving:
            answer(None)
            return
        task = tenant.spawn(tenant.look(asked.method, asked.body, asked.trace), Rank.CALL)
        task.add_done_callback(
            lambda done: answer(None if done.cancelled() or done.exception() is not None else done.result())
        )

    def _call_over(self, ref: str, tenant: Tenant, task: asyncio.Task[object]) -> None:
        """A call whose agent was told to stop is not answered any more, nor is one that failed in our own code. One that cancelled its own
        task has failed, and would do so again."""
        if not (task.cancelled() or task.exception() is not None):
            return
        if task.cancelled() and not tenant.is_leaving and self.services.calls.is_under_way(ref):
            self.services.answer(ref, False, error_to_plain(self_cancelled()))
        elif self.services.calls.cut_off(ref):
            self.peer.push_awaited(CallCut(ref))

    def _read_logs(self, said: ReadLogs) -> None:
        if self.world.logs is not None:
            self._tasks.start(
                self._tell_logs(said.ref, read_logs(self.world.logs, LogsOf(*said.asked), self.world.threads.read))
            )

    async def _tell_logs(self, ref: str, reading: Awaitable[bytes]) -> None:
        page, problem = await tried(reading)
        self.peer.push_awaited(LogsRead(ref, page or b"", "" if problem is None else in_words(problem)))

    COMMANDS: ClassVar[dict[type[Message], Callable[..., None]]] = {
        Start: _start,
        Starts: _starts,
        Wake: _wake,
        Deliver: _to_life,
        PauseRun: _to_life,
        MailSettled: _to_life,
        Signal: _to_life,
        Stop: _stop,
        MakeCall: _call,
        Observed: _watched,
        Prepare: _prepare,
        Passivate: _passivate,
        RetireHost: _retire,
        HoldStorage: _hold_storage,
        CodeFiles: _code,
        ReadLogs: _read_logs,
        Ping: lambda *_: None,  # the next exchange is the answer, and it is on its way already
    }

    def forget(self, tenant: Tenant) -> None:
        # The life is never opened again, though a command for it may still be under way.
        self._left[tenant.agent_id] = max(tenant.incarnation, self._left.get(tenant.agent_id, 0))
        if self.tenants.get(tenant.agent_id) is tenant:
            del self.tenants[tenant.agent_id]
            self.services.forget_storage(tenant.agent_id)
        tenant.has_place = False

    async def _tidy(self) -> None:
        """Let idle agents go, tell how this host is, and end it when the supervisor has been gone for too long."""
        loop, pause_s = asyncio.get_running_loop(), min(self.limits.idle_ms, self.limits.heartbeat_ms) / 1000
        off_ms = self._wall_off_ms()
        while True:
            due_s = upkeep_s() + pause_s
            await upkeep_pause(pause_s)
            off_ms = self._notice_clock(off_ms)
            # code that holds the loop makes the sleep late; agents that wait for a turn of it are late, too
            late_ms = max(int((upkeep_s() - due_s) * 1000), self.world.turns.waited_ms)
            if self.peer.is_clear or len(self._left) > LEFT_KEPT:  # then every command for these lives has arrived
                self._left.clear()
            now = loop.time()
            for tenant in list(self.tenants.values()):
                is_idle = now - tenant.idle_since_s >= self.limits.idle_ms / 1000
                if tenant.may_sleep and (is_idle or tenant.is_broken or tenant.leaves_at_rest):
                    tenant.leave()
            failing = self.peer.failing_since
            if failing is not None and now - failing >= self.limits.orphan_ms / 1000:
                self._tasks.finish("orphaned")
            threads = self.world.threads
            self.peer.push_later(
                HostVitals(self.world.vitals.rss_mb(), threads.left_behind > 0, late_ms, threads.writes_waiting)
            )

    def _wall_off_ms(self) -> int:
        return self.world.clock.now_ms() - self.world.clock.steady_ms()

    def _notice_clock(self, before_ms: int) -> int:
        # Have the alarms of all agents looked at again if the wall clock was set. Returns how far it is off the steady one.
        off_ms = self._wall_off_ms()
        if abs(off_ms - before_ms) < LEAP_MS:
            return before_ms
        for tenant in list(self.tenants.values()):
            tenant.clock_was_set()
        return off_ms


def _load_ahead(name: str, code_dir: Path | None) -> None:
    prepare: Callable[[], None] = load_type(name, code_dir).prepare  # type: ignore[attr-defined]
    prepare()
