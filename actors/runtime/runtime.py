"""The runtime, for scripts, notebooks and async code.

    with Runtime(data="./perdure-data") as runtime:
        census = runtime.agent(Census, "stdlib")
        report = census.take(root)

In sync code every call blocks until its answer; in async code the same call gives an awaitable (`awaiting`). Type checkers cannot see
which of the two a line of code is. So `with Runtime(…)` is typed as what blocks, and `async with Runtime(…)` as an `AsyncRuntime`; it is
one object. Both are served by one thread with a loop of its own, so a client keeps its conversation with the supervisor whatever the
author's code does.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, cast, overload

from perdure.actors.agent.agent import Agent
from perdure.actors.code.signatures import check_options
from perdure.actors.event_stream import EventSource, EventStream
from perdure.actors.events.observability import Callback
from perdure.actors.jobs.schedule_requests import instant
from perdure.actors.life.asks import user_name
from perdure.actors.life.child_types import AsyncChild, AsyncInputless, Child, ClientOptions, Inputless
from perdure.actors.life.handle import Handle
from perdure.actors.life.results import BulkReport, RunHandle, RunResult, statuses_of
from perdure.actors.link.messages import Fields, Plain
from perdure.actors.link.performed import Awaits, Blocks, settled
from perdure.actors.link.questions import Query, Questions
from perdure.actors.ray_world.cluster_record import explain_refusal, nothing_serves
from perdure.actors.ray_world.driver import FORKED
from perdure.actors.ray_world.lifetime import Lifetime
from perdure.actors.ray_world.sigterm import SIGTERM_HANDLING
from perdure.actors.ray_world.system import system_world
from perdure.actors.ray_world.world import RayCluster
from perdure.actors.runtime.bulk import RunFilter
from perdure.actors.runtime.client import Client
from perdure.actors.runtime.data_directory import check_program, data_directory
from perdure.actors.runtime.packing import Packer
from perdure.actors.runtime.stopping import let_idle_agents_leave
from perdure.actors.tasks import Pending, awaited
from perdure.actors.threads import awaitable, wait_for
from perdure.ledger import (
    BY_OPERATOR,
    LAG_MAX_MS,
    LAG_MS,
    BadRequest,
    RuntimeClosed,
    SupervisorUnreachable,
    Verb,
    bucket_of,
    check_bool,
    check_format,
    check_id,
    check_whole,
    checked_replica,
    given_as,
)
from perdure.policies import Answerer, Limits

# ---------------------------------------------------------------- awaiting
# Whether our caller can await. The runtime's calls block if it cannot.
#
# Without a running event loop it cannot. In a notebook a loop runs beneath every cell, but a cell without `await` is sync code, where a
# call must block. A callback of a loop is no coroutine, but must never block the loop.


ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


# Whether our caller, directly or indirectly, is async code.
def can_await() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    frame = inspect.currentframe()
    while frame is not None and not frame.f_code.co_flags & ASYNC:
        if _is_cell(frame):
            return False
        frame = frame.f_back
    return True


# The top level of a notebook's cell is no function and no class.
def _is_cell(frame: FrameType) -> bool:
    code = frame.f_code
    return (
        "get_ipython" in frame.f_globals and not code.co_flags & inspect.CO_OPTIMIZED and code.co_name.startswith("<")
    )


# ---------------------------------------------------------------- session
# A session: what an open runtime has. `close` ends it, and raises in everything that waits.
#
# The conversation with the supervisor is served by one thread with a loop of its own. A process that is forked meanwhile has a copy of the
# session, and none of its threads, so a copy refuses every call and ends nothing.


CLOSED: Final = "it was closed. Open it again, or use it within `with Runtime(…)`; handles from before work then"
CLOSED_MEANWHILE: Final = (
    "it was closed meanwhile; what was asked for may have begun, and goes on if another program serves it"
)


class RuntimeSession:
    """One opening of a runtime.

    Args:
        offers: whether the supervisor is told with which code the agents of this process go on.
    """

    def __init__(self, cluster: RayCluster, limits: Limits, *, offers: bool) -> None:
        self.cluster = cluster
        self._process = os.getpid()
        self._lifetime, started = Lifetime(), threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._serve, args=(limits, offers, started), name="perdure-client", daemon=True
        )
        self.client: Client
        self._thread.start()
        started.wait()

    @property
    def is_ours(self) -> bool:
        return os.getpid() == self._process

    @property
    def is_open(self) -> bool:
        return self.is_ours and not self._lifetime.is_over

    def submit(self, job: Pending[T]) -> Future[T]:
        if not self.is_ours or self._loop.is_closed():
            job.close()
            raise RuntimeClosed("runtime", CLOSED if self.is_ours else FORKED)
        return self._lifetime.bound(asyncio.run_coroutine_threadsafe(job, self._loop))

    def do(self, job: Callable[[], T]) -> T:
        if threading.current_thread() is self._thread:
            return job()
        return wait_for(self.submit(_as_coroutine(job)))

    def let_idle_agents_leave(self) -> None:
        """Before the Ray ends with this, let agents that have nothing to do say how far their storages have come: a storage that is lost
        afterwards is missed. What is at work is waited for shortly."""
        if self.cluster.ends_with_this and self.is_open and threading.current_thread() is not self._thread:
            wait_for(self.submit(let_idle_agents_leave(self.client)))

    def close(self) -> None:
        # a copy in a forked process ends nothing
        if not self.is_ours:
            return
        self._lifetime.end(RuntimeClosed("runtime", CLOSED_MEANWHILE))
        with suppress(RuntimeError):  # the loop was closed before
            self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread is not threading.current_thread():
            self._thread.join()

    # on its own thread

    def _serve(self, limits: Limits, offers: bool, started: threading.Event) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        loop.call_soon(self._begin, limits, offers, started)
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.close()

    def _begin(self, limits: Limits, offers: bool, started: threading.Event) -> None:
        deployment = self.cluster.deployment
        packer = Packer(deployment.code_dir, sources_only=self.cluster.is_local)
        self.client = Client(system_world(), self.cluster.transport(), limits, deployment.code_dir, packer)
        if offers:
            with suppress(BadRequest):  # then a request for such an agent is refused
                self.client.offer_code()
        self._serving = awaited(self.client.serve())
        self._serving.add_done_callback(self._ended)
        started.set()

    def _ended(self, serving: asyncio.Task[None]) -> None:
        problem = None if serving.cancelled() else serving.exception()
        while isinstance(problem, ExceptionGroup):
            problem = problem.exceptions[0]
        if isinstance(problem, Exception):
            self._lifetime.end(problem)


async def _as_coroutine(job: Callable[[], T]) -> T:
    return job()


A = TypeVar("A", bound=Agent)
T = TypeVar("T")
Input = TypeVar("Input")
Output = TypeVar("Output")


LOOK_S: Final = 10.0  # for a supervisor to answer one who only looks


# ---------------------------------------------------------------- runtime


class RuntimeCalls(Questions):
    """What a `Runtime` and its type in async code have in common."""

    data: Path
    limits: Limits
    _session: RuntimeSession | None
    _was_open: bool

    def _opened(self) -> RuntimeSession:
        if self._session is None and self._was_open:
            raise RuntimeClosed("runtime", CLOSED)
        if self._session is None:
            raise BadRequest("runtime", "it is not open. Use it within `with Runtime(…)`, or call `open()` first")
        if not self._session.is_ours:
            raise RuntimeClosed("runtime", FORKED)
        return self._session

    @property
    def client(self) -> Client:
        """The client, whose methods are coroutines of the runtime's loop."""
        return self._opened().client

    def _settle(self, job: Pending[T]) -> T | asyncio.Future[T]:
        future = self._opened().submit(job)
        return awaitable(future) if can_await() else wait_for(future)

    @settled
    def _asked(self, question: Query) -> Pending[Any]:
        return self.client.supervisor.ask(question)

    @settled
    def ask(self, name: str, *args: object) -> Pending[Plain]:
        """Ask the supervisor: `ps`, `show`, `explain`, `list`, `frames`, `audit`, `limits`."""
        return self.client.ask(name, *args)

    @settled
    def ps(self) -> Pending[Fields]:
        """Counts, hosts, and the runs that are live."""
        return self.client.ask("ps")

    @settled
    def inspect(self, run_id: str) -> Pending[Fields | None]:
        """What is known of a run; None means not known yet."""
        return self.client.ask("inspect", run_id)

    @settled
    def cancel(self, run_id: str, reason: str = BY_OPERATOR) -> Pending[Plain]:
        """Cancel any run, and what its child waits for. One that has begun a step with an `undo` is aborted when its steps are undone."""
        return self.client.ask("cancel", run_id, None, reason)

    @settled
    def retry(self, key: str) -> Pending[Plain]:
        """Try a run again that has failed, was given up or is parked, or deliver a parked mail again.

        The run keeps its id, its steps and what its agent has written; it has all its attempts again, and the newest code. Raises
        `RetryRefused` for a run that is live, has completed or was cancelled, and `UnknownRun`.
        """
        return self.client.ask("retry", key)

    @settled
    def send(self, run_id: str, event: str, value: object = None, *, event_id: str | None = None) -> Pending[None]:
        """Send an event to a run, which takes it by `run.wait_for(event)`: exactly once, in the order of the calls, now or when it comes
        to wait for it. Durable on return.

        The value is plain data. The same `event_id` for the same run and event is the same event, whatever the value. Raises `EventRefused`
        for a run that has ended, or has too many events that it has not taken, and `UnknownRun`.
        """
        return self.client.send(run_id, event, value, event_id)

    @settled
    def asks(self, *, to: str | None = None, closed: bool = False, limit: int = 1000) -> Pending[Sequence[Fields]]:
        """The open questions to people, those that wait for longest first: all, or those that have come to a group or a person. They are
        those of runs, and about calls of chats that wait. With `closed` also those that are answered, expired or withdrawn, of runs that
        are live or have ended lately."""
        asked = None if to is None else check_id("to", to, self.limits.id_max), check_bool("closed", closed)
        return self.client.ask("asks", *asked, check_whole("limit", limit))

    @settled
    def answer(
        self,
        ask_id: str,
        value: object,
        *,
        who: str | None = None,
        args: Mapping[str, object] | None = None,
        digest: str | None = None,
        channel: str = "runtime",
    ) -> Pending[Fields]:
        """Answer a question to people (`asks`), and return it as it stands then. Durable on return.

        Whoever has the directory may answer everything, and is recorded.

        Args:
            value: the answer as JSON has it, or what turns into that.
            who: the name of the one who answers; by default that of the user of this machine.
            args: arguments that are to be used in place of the proposed ones of these names.
            digest: that of the question that was looked at; one that has changed since is not answered.
            channel: by what the answer came, for the record.

        Raises `AlreadyAnswered`, `AskClosed`, `UnknownAsk`, `AnswerRefused` for another `digest`, and `BadRequest` that names the place
        for an answer that does not fit. What a validator of the type refuses is known to the run alone, which asks again (`note` says why).
        """
        by = Answerer(user_name() if who is None else who, is_operator=True)
        return self.client.answer(ask_id, value, by, channel, args=args, digest=digest)

    @settled
    def pause(self, run_id: str) -> Pending[Plain]:
        """Pause a live run: it gives up its place at its next step at which nothing else of it is at work, and is not entered again until
        `resume`. What it waits for goes on to come. Raises `UnknownRun`, and `PauseRefused` for a run that is not live, whose steps
        are being undone, or that is at work and has one attempt."""
        return self.client.ask("pause", run_id, True)

    @settled
    def resume(self, run_id: str) -> Pending[Plain]:
        """Let a paused run go on."""
        return self.client.ask("pause", run_id, False)

    @settled
    def list(
        self, *, parent: str | None = None, status: Sequence[str] | None = None, limit: int = 1000
    ) -> Pending[Sequence[Fields]]:
        """Runs, oldest first."""
        asked = parent, statuses_of(status), None, check_whole("limit", limit)
        return self.client.ask("list", *asked)

    @settled
    def clear(self, *, status: Sequence[str] | None = None, older_than: float | datetime | None = None) -> Pending[int]:
        """Clear retained runs of any parent; live ones are cancelled first. Returns how many.

        `older_than` is an instant: milliseconds since the epoch, or an aware datetime.
        """
        which = RunFilter()
        if status is not None:
            which["status"] = status
        if older_than is not None:
            which["requested_before"] = instant("older_than", older_than)
        return self._cleared(which)

    async def _cleared(self, which: RunFilter) -> int:
        report = await self.client.steer_runs(Verb.CLEAR, which, everything=not which)
        return report.hit + report.others

    @settled
    def cancel_runs(
        self, *, everything: bool = False, dry_run: bool = False, reason: str = BY_OPERATOR, **which: Unpack[RunFilter]
    ) -> Pending[BulkReport]:
        """Cancel the runs that a filter chooses (`RunFilter`), and what their children wait for.

            runtime.cancel_runs(type=Reader, requested_before=yesterday, dry_run=True).found
            runtime.cancel_runs(type=Reader, requested_before=yesterday)

        It goes through them in groups, newest request first, and what is requested meanwhile is left alone. If it is cut off, some are
        cancelled, and it can be asked for again. With `dry_run` they are only counted. Without a filter `everything` must be said.

        Raises `BadRequest` for filters that contradict each other, and for one that chooses only what cannot be cancelled.
        """
        return self._steered(Verb.CANCEL, which, everything=everything, dry_run=dry_run, reason=reason)

    @settled
    def retry_runs(
        self, *, everything: bool = False, dry_run: bool = False, **which: Unpack[RunFilter]
    ) -> Pending[BulkReport]:
        """Try the runs again that a filter chooses, of those that failed, were given up or are parked; see `retry` and `cancel_runs`. Each
        is tried again once, whatever becomes of it meanwhile."""
        return self._steered(Verb.RETRY, which, everything=everything, dry_run=dry_run)

    @settled
    def clear_runs(
        self, *, everything: bool = False, dry_run: bool = False, **which: Unpack[RunFilter]
    ) -> Pending[BulkReport]:
        """Clear the runs that a filter chooses, and what their children had requested. Live ones are cancelled first. See `cancel_runs`."""
        return self._steered(Verb.CLEAR, which, everything=everything, dry_run=dry_run)

    def _steered(self, verb: Verb, which: RunFilter, **how: Any) -> Pending[BulkReport]:
        return self.client.steer_runs(verb, which, **how)

    def events(self, run_id: str, after: int = -1) -> EventStream[Fields]:
        """The events of a run after a number: kept ones, then live ones, until its hard end.

        For `for` in sync code and for `async for` in async code. Raises `UnknownRun` when it is iterated over.
        """
        return self._stream(lambda client: client.follow_to_end(run_id, after))

    # Each iteration is of the session in which it begins.
    def _stream(self, begin: Callable[[Client], AsyncGenerator[T, None]]) -> EventStream[T]:
        def source() -> EventSource[T]:
            session = self._opened()
            return EventSource(begin(session.client), session.submit, lambda: session.is_open)

        return EventStream(source)

    def subscribe(self, channel: str, callback: Callback) -> Callable[[], None]:
        """Hear of what happens on a channel in the whole runtime, from now on; see `observability.EventType`.

        The callback is called on the runtime's own thread, so it must be quick; what it raises is logged once and goes no further.
        Returns the way to unsubscribe. Raises `BadRequest` for an unknown channel and for what cannot be called.
        """
        session = self._opened()
        unsubscribe = session.do(lambda: session.client.subscribe(channel, callback))
        return lambda: session.do(unsubscribe) if session.is_open else None


# The type of `async with Runtime(…) as runtime`. At run time it is the `Runtime` itself.
class AsyncRuntime(RuntimeCalls, Awaits):
    """The methods of `Runtime`, described there. Here their calls give awaitables."""

    def __new__(cls, *_: object, **_options: object) -> Self:
        raise TypeError("AsyncRuntime is a type for annotations; write `async with Runtime(…) as runtime`")

    def agent(self, agent_class: type[A], name: str, of: object = None) -> A:
        raise NotImplementedError

    @overload
    def run(
        self, agent_class: AsyncInputless[Output], input: None = None, **options: Unpack[ClientOptions]
    ) -> Awaitable[RunResult[Output]]: ...
    @overload
    def run(
        self, agent_class: Inputless[Output], input: None = None, **options: Unpack[ClientOptions]
    ) -> Awaitable[RunResult[Output]]: ...
    @overload
    def run(
        self, agent_class: AsyncChild[Input, Output], input: Input, **options: Unpack[ClientOptions]
    ) -> Awaitable[RunResult[Output]]: ...
    @overload
    def run(
        self, agent_class: Child[Input, Output], input: Input, **options: Unpack[ClientOptions]
    ) -> Awaitable[RunResult[Output]]: ...
    def run(self, *_: Any, **_options: Any) -> Any: ...
    @overload
    def start(
        self, agent_class: Inputless[object], input: None = None, **options: Unpack[ClientOptions]
    ) -> Awaitable[RunHandle]: ...
    @overload
    def start(
        self, agent_class: Child[Input, object], input: Input, **options: Unpack[ClientOptions]
    ) -> Awaitable[RunHandle]: ...
    def start(self, *_: Any, **_options: Any) -> Any: ...


class Runtime(RuntimeCalls, Blocks):
    """A client of the supervisor of one data directory; starts Ray, or joins it.

    Args:
        data: the directory under which everything durable lies, or the URL of a bucket: `s3://bucket/prefix`.
        address: the Ray cluster to join; by default the one that `RAY_ADDRESS` names, or else the one that already serves `data`, if this
            machine is a node of it, or else a new one on this machine. `local` is always a new one.
        limits: every limit; see `policies.Limits`. They are those of the supervisor, so one that joins may leave them out, and then has
            the supervisor's; given limits must be the same.
        may_start: False to look at what serves `data`, and start neither a Ray nor a supervisor.
        replica: the bucket into which the directory is followed, `s3://bucket/prefix`; "" to follow it no more. The directory remembers
            it, so later programs may leave it out.
        lag_ms: how often what is new is brought into that bucket.
        lag_max_ms: runs and calls are not answered while the bucket is further behind. If the directory is lost, what was acknowledged in
            so long and two `lag_ms` at most is undone, everywhere at once, when the replica is restored.
        take_over: also take a bucket that a living supervisor of another Ray serves, which then ends.
    """

    def __init__(
        self,
        data: str | Path = "./perdure-data",
        *,
        address: str | None = None,
        limits: Limits | None = None,
        may_start: bool = True,
        replica: str | None = None,
        lag_ms: float = LAG_MS,
        lag_max_ms: float = LAG_MAX_MS,
        take_over: bool = False,
    ) -> None:
        self.data = data_directory(data)
        self.limits = limits or Limits()
        self._replica = None if replica is None else checked_replica(replica, lag_ms, lag_max_ms)
        if self._replica is not None and (bucket_of(self.data) or not may_start):
            words = "only a directory is followed, and only by what may start its supervisor"
            raise BadRequest("replica", words)
        self._demanded, self._address, self._may_start, self._take_over = limits, address, may_start, take_over
        self._session: RuntimeSession | None = None
        self._was_open = False

    # opening and closing

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> AsyncRuntime:
        with SIGTERM_HANDLING.held():
            await _to_the_end(self.open, undo=self.close)
        return self.asynchronous

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        with SIGTERM_HANDLING.held():
            await _to_the_end(self.close)

    def open(self) -> Self:
        """Start or join the cluster and find the supervisor. Returns the runtime.

        Raises a `LedgerError` if the data directory cannot be used, and `BadRequest` if limits were given and the supervisor that
        serves it already has others, or if the runtime is open. With `may_start=False`: `SupervisorUnreachable` if nothing serves it.
        """
        if self._session is not None and self._session.is_ours:
            raise BadRequest("runtime", f"it is open on {given_as(self.data)} already")
        check_program()
        try:
            cluster = self._enter()
        except KeyboardInterrupt as stop:
            raise stop.with_traceback(None) from None  # where this thread waited says nothing
        except SupervisorUnreachable as problem:
            raise explain_refusal(problem, self._address) from problem
        session = self._session = RuntimeSession(cluster, self.limits, offers=self._may_start)
        self._was_open = True
        try:  # the first answer tells whether the ledger could be opened, and by which limits the supervisor decides
            in_force = Limits.recorded(wait_for(session.submit(self._first_answer())))
            if self._demanded is not None:
                check_limits(self._demanded, in_force, self.data)
            self.limits = in_force
            self.client.take(in_force)
        except BaseException:
            self.close()
            raise
        return self

    def _enter(self) -> RayCluster:
        if self._may_start:
            return RayCluster.start(
                self.data,
                address=self._address,
                limits=self.limits,
                replica=self._replica,
                take_over=self._take_over,
            )
        if not bucket_of(self.data):
            check_format(self.data)
        found = RayCluster.found(self.data, self._address)
        if found is None:
            raise SupervisorUnreachable(nothing_serves(self.data))
        return found

    async def _first_answer(self) -> Plain:
        try:
            async with asyncio.timeout(None if self._may_start else LOOK_S):
                return await self.client.ask("limits")
        except TimeoutError:
            raise SupervisorUnreachable(f"the supervisor of {given_as(self.data)} does not answer") from None

    def close(self) -> None:
        """End the conversation; a cluster that this runtime started ends too, and everything durable stays. Callers that wait get a
        `RuntimeClosed`. In a forked process it ends nothing."""
        session, self._session = self._session, None
        if session is not None and session.is_ours:
            session.let_idle_agents_leave()
            session.close()
            session.cluster.close()

    def kill_everything(self) -> None:
        """`SIGKILL` the whole cluster at once, as a power cut would, and be closed. It must be one that this runtime started."""
        session = self._opened()
        session.close()
        session.cluster.kill_everything()
        self._session = None

    @property
    def asynchronous(self) -> AsyncRuntime:
        """This runtime as async code sees it, for one that was not opened by `async with`."""
        return cast("AsyncRuntime", self)

    @property
    def cluster(self) -> RayCluster:
        """The cluster."""
        return self._opened().cluster

    # agents and runs

    def agent(self, agent_class: type[A], name: str, of: object = None) -> type[A]:
        """A typed handle of an agent. Nothing is started by it; a call of an exposed method wakes the agent.

        To a type checker the handle is the class itself, over which exposed methods are called with their own arguments and give their
        answers (`exposing`). `of` is a handle of the agent whose sub-agent is meant: calls go through it, and its `on_before_sub_agent`
        may refuse them.
        """
        to = self.client.address(agent_class, name, of)

        def call(*asked: Any) -> object:
            if self.client.caller.followed(*asked) is None:
                return self._settle(self.client.caller.call(*asked))
            return self._stream(lambda client: client.caller.reach(*asked))

        return cast("type[A]", Handle(to, call, lambda *asked: self._settle(self.client.tell(*asked))))

    @overload
    def run(
        self, agent_class: AsyncInputless[Output], input: None = None, **options: Unpack[ClientOptions]
    ) -> RunResult[Output]: ...
    @overload
    def run(
        self, agent_class: Inputless[Output], input: None = None, **options: Unpack[ClientOptions]
    ) -> RunResult[Output]: ...
    @overload
    def run(
        self, agent_class: AsyncChild[Input, Output], input: Input, **options: Unpack[ClientOptions]
    ) -> RunResult[Output]: ...
    @overload
    def run(
        self, agent_class: Child[Input, Output], input: Input, **options: Unpack[ClientOptions]
    ) -> RunResult[Output]: ...

    def run(self, agent_class: type, input: object = None, **options: Unpack[ClientOptions]) -> object:
        """Run an agent and wait for its end. The same `run_id` with the same content is the same run, after any death.

        With `after` it begins when that has come true, of runs that clients have asked for; see `ClientOptions`.
        Raises `ConflictingRequest` if the id names a run of other content, and `BadRequest` for an input that the child does not take.
        """
        check_options("run", options, ClientOptions.__annotations__)
        return self._settle(self.client.run(agent_class, input, **options))

    @overload
    def start(
        self, agent_class: Inputless[object], input: None = None, **options: Unpack[ClientOptions]
    ) -> RunHandle: ...
    @overload
    def start(self, agent_class: Child[Input, object], input: Input, **options: Unpack[ClientOptions]) -> RunHandle: ...

    def start(self, agent_class: type, input: object = None, **options: Unpack[ClientOptions]) -> RunHandle:
        """Begin a run and come back as soon as it is durable. The handle's `result()` waits for its end."""
        check_options("start", options, ClientOptions.__annotations__)

        def settle(asked: Callable[[Client], Pending[object]]) -> object:
            return self._settle(asked(self.client))

        return cast("RunHandle", self._settle(self.client.start(agent_class, input, settle=settle, **options)))


# A job on a thread cannot be cancelled, so a cancelled caller waits for it and undoes it.
async def _to_the_end(job: Callable[[], object], undo: Callable[[], None] | None = None) -> None:
    doing = awaited(asyncio.to_thread(job))
    try:
        await asyncio.shield(doing)
    except asyncio.CancelledError:
        await asyncio.wait({doing})
        if undo is not None and not doing.exception():
            await asyncio.to_thread(undo)
        raise


def check_limits(demanded: Limits, in_force: Limits, data: Path) -> None:
    """Refuse limits that are not those of the supervisor. Raises `BadRequest`, which names the first that differs."""
    names = demanded.differing(in_force)
    if names:
        said = "; ".join(f"{name} is {getattr(in_force, name):,}, not {getattr(demanded, name):,}" for name in names)
        raise BadRequest(
            f"limits.{names[0]}",
            f"the supervisor that serves {given_as(data)} was started with other limits: {said}. "
            "Leave `limits` out to take those in force, or end that supervisor's cluster first",
        )
