"""A client of the supervisor, in coroutines. `Runtime` is its form for sync code.

A client has no storage and no fenced life. Any other client can repeat what it requested under a run id.
"""

from __future__ import annotations

import asyncio
import math
import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, Unpack, cast, overload

from perdure.actors.agent.agent import Agent
from perdure.actors.code.carried_code import CarriedCode
from perdure.actors.code.naming import type_name, what_is_typed
from perdure.actors.events.observability import Callback, Channels, EventType
from perdure.actors.life.asks import Answering
from perdure.actors.life.child_types import AsyncChild, AsyncInputless, Child, ClientOptions, Inputless
from perdure.actors.life.class_options import check_class, class_options
from perdure.actors.life.conditions import After, condition_options
from perdure.actors.life.dispatch import result_of
from perdure.actors.life.handle import Handle, address_of
from perdure.actors.life.host_options import pool_spec
from perdure.actors.life.results import UNREADABLE, BulkReport, RunHandle, RunResult
from perdure.actors.life.run_requests import input_shape, preview
from perdure.actors.link.caller import Address, AgentCaller
from perdure.actors.link.direct_calls import DirectCalls
from perdure.actors.link.kept_back import KeptBackRuns
from perdure.actors.link.messages import (
    ClientHello,
    CodeFiles,
    Fields,
    Follow,
    Happened,
    KeptBack,
    Message,
    Observe,
    Plain,
    RunEvent,
)
from perdure.actors.link.peer import Peer
from perdure.actors.link.questions import question_of, sent_event
from perdure.actors.link.supervisor_client import SupervisorClient
from perdure.actors.ports import Transport, World
from perdure.actors.runtime.bulk import BulkPass, RunFilter, chosen_by, wanted_by
from perdure.actors.runtime.packing import Packer
from perdure.actors.tasks import Pending, Tasks, awaited, to_the_end
from perdure.actors.telemetry.telemetry import carried
from perdure.ledger import (
    BEGAN_BY,
    BY_OPERATOR,
    HARD,
    LAST_EVENTS,
    Adopt,
    BadRequest,
    LedgerError,
    Request,
    Status,
    Verb,
    bucket_of,
    check_bool,
    check_id,
    check_text,
    sub_agent_id,
)
from perdure.policies import Answerer, Limits

A = TypeVar("A", bound=Agent)
Input = TypeVar("Input")
Output = TypeVar("Output")
_KEPT: Final = (
    "This end is kept, and the same run_id gives it again. `runtime.retry({0!r})` or `perdure retry {1}` tries the run again, with the "
    "newest code; another run_id begins another run."
)


Settle: TypeAlias = "Callable[[Callable[[Client], Pending[Any]]], object]"


class StartOptions(ClientOptions, total=False):
    settle: Settle | None
    began_by: str


class Client:
    """One client of one supervisor. Use `serve` as a task for as long as the client is in use.

    `packer` makes the code travel that is not installed where the hosts are.
    """

    def __init__(
        self,
        world: World,
        transport: Transport,
        limits: Limits,
        code_dir: Path | None = None,
        packer: Packer | None = None,
    ) -> None:
        self.world, self.limits, self.code_dir, self._packer = world, limits, code_dir, packer
        self.client_id = "client-" + world.dice.token()[:10]
        self._tasks = Tasks(self.client_id)
        self.supervisor = SupervisorClient(world.dice, self._tasks)
        self.peer = self.supervisor.peer = Peer(
            world, self._tasks, transport, self.client_id, limits, self._hello, self._receive
        )
        self.peer.refused = self._refused
        self._code = CarriedCode(code_dir) if code_dir is not None and bucket_of(code_dir.parent) else None
        if self._code is not None:
            self.peer.said_first = self._said_first
        self.supervisor.direct_calls = DirectCalls(self._tasks, self.peer)
        self.caller = AgentCaller(
            self.supervisor,
            world.dice,
            world.threads,
            limits,
            code_dir,
            lambda kind: pool_spec(kind, self._packed_for.get(kind, "")),
            ready=self.ready,
        )
        self._packed_for: dict[type | None, str] = {}
        self._packed_at: dict[type | None, int] = {}  # with how much that was typed
        self._packing = asyncio.Lock()
        self._frames: dict[str, list[Callable[[Fields | None], None]]] = {}
        self.kept_back = KeptBackRuns(self._is_waiting)
        self._channels = Channels()
        self._subscribers = 0
        self._life = 0  # the supervisor life of which happenings are heard

    def _said_first(self) -> list[Message]:
        files = {} if self._code is None else self._code.take()
        return [CodeFiles(files)] if files else []

    def take(self, limits: Limits) -> None:
        """Use these limits from now on."""
        self.limits = self.caller.limits = limits

    @property
    def is_over(self) -> bool:
        """Whether its conversation has ended, because of a bug: nothing that is asked of it is answered any more."""
        return self._tasks.has_ended

    async def serve(self) -> None:
        """Serve the conversation. A ledger that cannot go on, as on a full disk, is an error for callers that wait. It is asked for again,
        so that later callers are answered once it can go on."""
        try:
            async with self._tasks:
                self._tasks.start(self.peer.serve())
                await self._tasks.over()
        except* Exception as problems:
            self.supervisor.refuse(problems)
            raise

    # All callers that wait get the cause. Followers look again (`None`), and are told the same until the
    # ledger goes on.
    def _refused(self, problem: LedgerError) -> None:
        self.supervisor.tell_all(problem)
        offers = [said for said in self.peer.pending if isinstance(said, Adopt)]
        self.peer.begin_anew(problem)
        for offer in offers:
            self.peer.push(offer)

    def _hello(self, again: bool) -> ClientHello:
        if again:
            followed = [Follow(topic, wanted=True) for topic, followers in self._frames.items() if followers]
            observed = [Observe(wanted=True)] if self._subscribers else []
            for said in [*self.supervisor.ask_again(), *followed, *observed]:
                asyncio.get_running_loop().call_soon(self.peer.push, said)
            for follower in [each for followers in self._frames.values() for each in followers]:
                asyncio.get_running_loop().call_soon(follower, None)
        self.kept_back.now.clear()  # what is still so is told to this session
        return ClientHello(self.supervisor.waits)

    def _is_waiting(self, run_id: str) -> bool:
        return run_id in self._frames or self.supervisor.is_waiting(run_id)

    def _receive(self, message: Message) -> None:
        match message:
            case RunEvent(frame):
                for topic in (frame["run_id"], frame["event"].get("parent")):
                    for follower in self._frames.get(topic, ()):
                        follower(frame)
            case KeptBack(told):
                self.kept_back.take(told)
            case Happened():
                self._happened(message)
            case CodeFiles(files):
                if self._code is not None:
                    self._code.put(files)
            case _:
                self.supervisor.receive(message)

    # agents

    def agent(self, agent_class: type[A], name: str, of: object = None) -> A:
        """A typed handle of an agent, or of a sub-agent `of` another one. A call of an exposed method gives an awaitable."""
        return cast("A", Handle(self.address(agent_class, name, of), self.caller.reach, self.tell))

    def address(self, agent_class: type[Agent], name: str, of: object = None) -> Address:
        """The address of a handle. Raises `BadRequest` for an invalid name."""
        check_id("name", name, self.limits.id_max)
        check_class(agent_class)
        if of is None:
            return Address.of(agent_class, name, self.code_dir)
        parent = address_of(of)
        if parent is None:
            raise BadRequest("of", f"{of!r} is no handle of an agent")
        child = sub_agent_id(parent.agent_id, type_name(agent_class, self.code_dir), name)
        return Address(agent_class, child, parent.standalone)

    async def call(
        self, agent_class: type[Agent], name: str, method: str, args: tuple[object, ...], kwargs: dict[str, object]
    ) -> Any:
        """Call an exposed method of an agent, at most once."""
        return await self.caller.call(self.address(agent_class, name), method, args, kwargs)

    async def tell(self, to: Address, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Have an exposed method of an agent called exactly once; durable on return. A child hears from its relatives alone."""
        await self.ready(to.agent_class)
        letter = self.caller.letter(to, method, args, kwargs)
        await self.caller.tell(self.world.dice.token(), "", letter, is_new=True)

    async def ready(self, agent_class: type[Agent] | None = None) -> None:
        """Have the code packed that hosts of this class need, unless it is installed. It takes a while, the first time, and is done on a
        thread. Raises `BadRequest` for code that cannot travel. What is no class has no code, and is refused with the request."""
        packer = self._packer
        if packer is None or not isinstance(agent_class, type | None) or self._is_packed(agent_class):
            return
        async with self._packing:
            if not self._is_packed(agent_class):
                await to_the_end(awaited(self._pack(packer, agent_class)))

    def _is_packed(self, agent_class: type[Agent] | None) -> bool:
        return self._packed_at.get(agent_class) == what_is_typed(agent_class)

    async def _pack(self, packer: Packer, agent_class: type[Agent] | None) -> None:
        typed = what_is_typed(agent_class)
        package, offers = await self.world.threads.run(
            lambda: (packer.package_for(agent_class) if agent_class is not None else "", list(packer.offers()))
        )
        self._offer(offers)
        self._packed_for[agent_class], self._packed_at[agent_class] = package, typed

    def offer_code(self) -> None:
        """Tell the supervisor with which code the agents of this process go on when they wake. It comes before what is asked for next."""
        self._offer(self._packer.offers() if self._packer is not None else ())

    def _offer(self, offers: Iterable[tuple[str, dict[str, str]]]) -> None:
        for package, digests in offers:
            self.peer.push(Adopt(package, digests))

    # runs

    def request(
        self,
        agent_class: type[Agent],
        input: object,
        run_id: str | None,
        *,
        wait: bool,
        after: After | None = None,
        losers: str = "leave",
        began_by: str = "",
    ) -> Request:
        """The request for a run without a parent, of a class that is `ready`. `began_by` names who asks for it, where that is known."""
        body, digest = input_shape(agent_class).encode(input, self.limits.input_bytes_max)
        run_id = check_id("run_id", self.world.dice.token() if run_id is None else run_id, self.limits.id_max)
        waits = condition_options(after, losers, run_id, self.limits.id_max)
        return Request(
            run_id,
            type_name(agent_class, self.code_dir),
            "",
            "",
            digest,
            body,
            class_options(agent_class, None, self._packed_for.get(agent_class, ""))
            | preview(body, self.limits)
            | carried()
            | waits
            | ({BEGAN_BY: began_by} if began_by else {}),
            0,
            wait,
        )

    @overload
    async def run(
        self, agent_class: AsyncInputless[Output], input: None = None, **options: Unpack[ClientOptions]
    ) -> RunResult[Output]: ...
    @overload
    async def run(
        self, agent_class: Inputless[Output], input: None = None, **options: Unpack[ClientOptions]
    ) -> RunResult[Output]: ...
    @overload
    async def run(
        self, agent_class: AsyncChild[Input, Output], input: Input, **options: Unpack[ClientOptions]
    ) -> RunResult[Output]: ...
    @overload
    async def run(
        self, agent_class: Child[Input, Output], input: Input, **options: Unpack[ClientOptions]
    ) -> RunResult[Output]: ...

    async def run(
        self,
        agent_class: type,
        input: object = None,
        *,
        run_id: str | None = None,
        after: After | None = None,
        losers: str = "leave",
    ) -> RunResult:
        """Run an agent and wait for its end. The same `run_id` with the same content is the same run, after any death."""
        await self.ready(agent_class)
        request = self.request(agent_class, input, run_id, wait=True, after=after, losers=losers)
        return await self._end(agent_class, request, is_named=run_id is not None)

    @overload
    async def start(
        self, agent_class: Inputless[object], input: None = None, **options: Unpack[StartOptions]
    ) -> RunHandle: ...
    @overload
    async def start(
        self, agent_class: Child[Input, object], input: Input, **options: Unpack[StartOptions]
    ) -> RunHandle: ...

    async def start(
        self,
        agent_class: type,
        input: object = None,
        *,
        run_id: str | None = None,
        after: After | None = None,
        losers: str = "leave",
        settle: Settle | None = None,
        began_by: str = "",
    ) -> RunHandle:
        """Begin a run and come back as soon as it is durable. `settle` makes of the end what the handle's `result()` returns: it is given
        what a client is asked for, which may be another one by then."""
        await self.ready(agent_class)
        request = self.request(agent_class, input, run_id, wait=False, after=after, losers=losers, began_by=began_by)
        status = await self.supervisor.begin(request)
        asked_again = request._replace(wait=True)

        def end(client: Client) -> Pending[RunResult]:
            return client._end(agent_class, asked_again, is_named=run_id is not None)

        def send(run_id: str, event: str, value: object) -> object:
            if settle is None:
                return self.send(run_id, event, value)
            return settle(lambda client: client.send(run_id, event, value))

        return RunHandle(
            request.run_id,
            request.agent_type,
            status or str(Status.STARTING),
            lambda: end(self) if settle is None else settle(end),
            send,
        )

    async def _end(self, agent_class: type, request: Request, *, is_named: bool) -> RunResult:
        result = result_of(agent_class, request.run_id, await self.supervisor.begin(request))
        # Perhaps it ended long ago, before the code was mended.
        if is_named and result.status == "error" and result.reason != UNREADABLE:
            result.add_note(_KEPT.format(request.run_id, shlex.quote(request.run_id)))
        return result

    async def ask(self, name: str, *args: object) -> Plain:
        """Ask the supervisor a question by its name (`link.questions`)."""
        return await self.supervisor.ask(question_of(name, *args))

    async def send(self, run_id: str, event: str, value: object = None, event_id: str | None = None) -> None:
        """Send an event to a run; durable on return."""
        sent = sent_event(run_id, event, value, event_id, self.world.dice.token(), self.limits)
        epoch = self.peer.epoch if event_id is None else 0  # otherwise it may have been sent before
        await self.supervisor.ask_when_free(sent._replace(epoch=epoch))

    async def answer(
        self,
        ask_id: str,
        value: object,
        by: Answerer,
        channel: str,
        *,
        args: object = None,
        digest: str | None = None,
        answer_id: str | None = None,
    ) -> Fields:
        """Answer a question to people; durable on return. Returns the question as it stands then."""
        answer_id = self.world.dice.token() if answer_id is None else answer_id
        given = Answering(ask_id, value, by, channel, answer_id, args, digest)
        return await given.give(self.supervisor, self.limits)

    async def make_pass(self, job: BulkPass, within_s: float = math.inf) -> BulkReport:
        """Steer many runs, or count them. After so long it ends at the end of a page, and its report says where the rest begins."""
        questions, until_s = job.questions(), asyncio.get_running_loop().time() + within_s
        answer: Fields | None = None
        while True:
            try:
                asked = questions.send(cast("Any", answer))
            except StopIteration:
                return job.report
            if answer is not None and job.is_at_page(asked) and asyncio.get_running_loop().time() > until_s:
                return job.report
            answer = await self.ask(*asked)

    async def steer_runs(
        self,
        verb: Verb,
        which: RunFilter,
        *,
        everything: bool = False,
        dry_run: bool = False,
        reason: str = BY_OPERATOR,
    ) -> BulkReport:
        """Cancel, try again or clear the runs that a filter chooses, or count them. Raises `BadRequest` if it is empty and `everything`
        is not said."""
        wanted = chosen_by(verb, wanted_by(which, self.code_dir), everything=check_bool("everything", everything))
        job = BulkPass(verb, wanted, reason=check_text("reason", reason), dry_run=check_bool("dry_run", dry_run))
        return await self.make_pass(job)

    # events

    async def follow(self, run_id: str, after: int = -1) -> AsyncGenerator[Fields, None]:
        """The events of a run after a number: first what is kept, then live, without a hole, until its hard end. Behind the end of one
        that has ended before, it waits for what comes if that is tried again; `is_told` says whether that is so."""
        arrived: asyncio.Queue[Fields | None] = asyncio.Queue()
        self._frames.setdefault(run_id, []).append(arrived.put_nowait)
        try:
            await self.peer.durable(Follow(run_id, wanted=True))
            async for frame, is_newest in self._unbroken(run_id, after, arrived):
                yield frame
                if is_newest and frame["event"]["kind"] in LAST_EVENTS:
                    return
        finally:
            self._unheard(run_id, arrived.put_nowait)

    async def follow_to_end(self, run_id: str, after: int = -1) -> AsyncGenerator[Fields, None]:
        if after < 0 or not await self.is_told(run_id, after):
            async with aclosing(self.follow(run_id, after)) as frames:
                async for frame in frames:
                    yield frame

    async def is_told(self, run_id: str, after: int) -> bool:
        """Whether a run has ended, and has no event after this one."""
        known = await self.ask("inspect", run_id)
        return known is not None and known["status"] in HARD and not await self.ask("frames", run_id, after)

    def hear(self, topic: str, callback: Callable[[Fields | None], None]) -> Callable[[], None]:
        """Have new events of a run, or of all runs of an agent (by its address), told to a callback; None says that some may have been
        missed. Returns the way to end it."""
        self._frames.setdefault(topic, []).append(callback)
        self.peer.push(Follow(topic, wanted=True))
        return lambda: self._unheard(topic, callback)

    def _unheard(self, topic: str, callback: Callable[[Fields | None], None]) -> None:
        self._frames[topic].remove(callback)
        if not self._frames[topic]:
            del self._frames[topic]
            self.peer.push(Follow(topic, wanted=False))

    async def _unbroken(
        self, run_id: str, last: int, arrived: asyncio.Queue[Fields | None]
    ) -> AsyncIterator[tuple[Fields, bool]]:
        """Each event, and whether it is the newest: after an end comes more if the run was tried again.

        First what is kept, then what arrives. A hole in what arrives is filled from what is kept, and so is what was not sent because the
        supervisor that was asked to has died (None arrives instead)."""
        frames = await self.ask("frames", run_id, last)
        while True:
            for frame in frames:
                last = frame["sequence"]
                yield frame, frame is frames[-1]
            live = await arrived.get()
            if live is None or live["sequence"] > last + 1:
                frames = await self.ask("frames", run_id, last)
            else:
                frames = [live] if live["sequence"] == last + 1 else []

    async def starts_of(self, parent: str) -> AsyncGenerator[list[str], None]:
        """The ids of the runs that an agent has asked for: first of all that are kept, oldest first, then of each new one. Some may come
        twice."""
        arrived: asyncio.Queue[Fields | None] = asyncio.Queue()
        self._frames.setdefault(parent, []).append(arrived.put_nowait)
        try:
            await self.peer.durable(Follow(parent, wanted=True))
            yield await self._runs_of(parent)
            while True:
                frame = await arrived.get()
                yield await self._runs_of(parent) if frame is None else [frame["run_id"]]
        finally:
            self._unheard(parent, arrived.put_nowait)

    async def _runs_of(self, parent: str) -> list[str]:
        runs = cast("list[Fields]", await self.ask("list", parent, None, None, RUNS_MAX))
        return [run["run_id"] for run in runs]

    def subscribe(self, channel: str, callback: Callback) -> Callable[[], None]:
        """Hear of everything that happens on a channel, in the whole runtime; see `Channels.subscribe`. Returns the way to end it."""
        leave = [self._channels.subscribe(channel, callback)]
        self._subscribers += 1
        if self._subscribers == 1:
            self.peer.push(Observe(wanted=True))

        def unsubscribe() -> None:
            if leave:
                leave.pop()()
                self._subscribers -= 1
                if self._subscribers == 0:
                    self.peer.push(Observe(wanted=False))

        return unsubscribe

    # Each observation begins with the supervisor's life. Only a new life is an event.
    def _happened(self, said: Happened) -> None:
        if said.type == EventType.SUPERVISOR_BOOTED:
            known, self._life = self._life, said.payload["epoch"]
            if known in (0, self._life):
                return
        self._channels.emit(said.channel, said.type, agent=said.agent, payload=said.payload, at_ms=said.at_ms)


RUNS_MAX: Final = 100_000
