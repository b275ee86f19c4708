"""One life of one agent: what every part of it stands on.

A life has a number, a storage, tasks of its own, and the ways to the supervisor and onto the loop. It knows none of the parts that work
in it (the outbox, alarms, fibers, …): these are made with the life and with those other parts that they need, and `Tenant` is the whole.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from contextvars import Context, copy_context
from functools import partial
from threading import RLock
from typing import Any, Final, Generic, TypeVar, cast, overload
from weakref import ref

from perdure.actors.code.author_call import in_words, is_async, overrides, staying, tried
from perdure.actors.event_stream import EventSource, EventStream, Followed
from perdure.actors.life.asks import time_stands_still
from perdure.actors.life.entered_code import GOES_ON, EnteredCode, outside_of_calls
from perdure.actors.life.host_services import HostServices
from perdure.actors.link.messages import InboxKept, Plain, Question, Report
from perdure.actors.ports import Dice
from perdure.actors.tasks import (
    AGENT,
    RANK,
    Pending,
    Tasks,
    close_unawaited,
    failure_or_itself,
    note_task,
    self_cancelled,
    to_the_end,
)
from perdure.actors.threads import awaitable, has_loop, wait_for
from perdure.ledger import (
    Alarm,
    AskCalls,
    BadRequest,
    Ended,
    Handled,
    Milestone,
    Progress,
    Released,
    StaleIncarnation,
    Took,
    Undoing,
    Waiting,
    path_of,
)
from perdure.ledger.storage.agent_storages import State, Storage, Transaction, bound_to, unbound
from perdure.policies import Rank

T = TypeVar("T")
Part = TypeVar("Part")

Ready = Callable[[], Awaitable[None]]
"""Brings the agent up, once; whoever calls it waits until it is up. Raises what `on_start` raised."""

_OF_DURABLE_WORK: Final = (Progress, Milestone, Ended, Undoing, Waiting, Took, Handled, Alarm, AskCalls, Released)

_MAKING = RLock()  # not a plain lock: a part may look at other parts while it is made


class cached_once(Generic[T]):  # noqa: N801 - it stands where `property` would
    """Like `functools.cached_property`, which has had no lock since Python 3.12: two threads would make two."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, whole: None, owner: type) -> cached_once[T]: ...

    @overload
    def __get__(self, whole: object, owner: type) -> T: ...

    def __get__(self, whole: object, owner: type) -> cached_once[T] | T:
        if whole is None:
            return self
        kept = vars(whole)
        with _MAKING:
            if self._name not in kept:
                kept[self._name] = self._make(whole)
            part: T = kept[self._name]
            return part


class Life:
    """What one life of an agent has.

    Attributes:
        agent: the author's object, or None until it was made. Of a life that is over it is there as long as the author's code has it.
        is_up: whether `on_start` has returned.
        is_leaving: whether it was told to stop, or is over.
        code: the author's code that is under way.
        has_place: whether its host counts it among its tenants; an older life that is only being ended is not.
        idle_since_s: when it was last seen at work, by the clock of the loop.
        lost_by: how the agent's last life was lost, if it was.
        was_stopped: whether the host of its last life was ended on purpose.
        has_asked: whether the ledger may know of calls of an earlier life that wait for people.
    """

    def __init__(
        self,
        services: HostServices,
        agent_id: str,
        incarnation: int,
        on_failure: Callable[[BaseException], None],
        reported: int,
    ) -> None:
        self.services, self.agent_id, self.incarnation = services, agent_id, incarnation
        self.limits, self.threads, self.faults = services.limits, services.world.threads, services.world.faults
        self.code_dir = services.code_dir
        self._agent: Any = None
        self._left: ref[Any] | None = None
        self.is_up = self.is_leaving = False
        self.code = EnteredCode()
        self.has_place = True
        self.idle_since_s = 0.0
        self.lost_by, self.has_asked, self.was_stopped = "", False, False
        self._storage: Storage | None = None
        self._reported = reported  # what the storage must have
        self._watch: Callable[[State], None] | None = None  # is given the state whenever the storage is opened
        self._parts: dict[type, Any] = {}
        self._steps: dict[str, dict[str, bytes]] = {}
        self._runs: dict[str, int] = {}  # with the attempts at work
        self.tasks = Tasks(AGENT + agent_id, on_failure)
        self._vigils: set[object] = set()

    @property
    def agent(self) -> Any:
        return self._agent if self._left is None else self._left()

    @agent.setter
    def agent(self, agent: Any) -> None:
        self._agent, self._left = agent, None

    @property
    def name(self) -> str:
        return path_of(self.agent_id)[-1][1]

    @property
    def dice(self) -> Dice:
        return self.services.world.dice

    def now_ms(self) -> int:
        return self.services.world.clock.now_ms()

    @property
    def may_enter_again(self) -> bool:
        # Whether the agent's class, or the runtime's limits, let a run be entered more than once.
        return (self.agent.attempts_max or self.limits.attempts_max) != 1

    # what it keeps

    @property
    def storage(self) -> Storage:
        # Opened when it is first looked at: an instant child never does, and so costs no file.
        if self._storage is None:
            self.check_open()  # code that goes on after its life opens nothing
            self._storage = self.services.agent_storages.open(self.agent_id, self.incarnation, self._reported)
            self._storage.guard = self.check_open
            if self._storage.file.finding:
                self.services.report_finding(self.agent_id, self._storage.file.finding)
            if self._watch is not None:
                self._watch(self._storage.state)
        return self._storage

    @property
    def is_storage_open(self) -> bool:
        return self._storage is not None

    @property
    def has_storage(self) -> bool:
        if self._storage is None:
            exists = self.services.agent_storages.exists(self.agent_id)
            if exists or not self._reported:
                return exists
        return self.storage.exists  # raises `StorageLost` if there is none any more

    @property
    def transaction(self) -> Transaction | None:
        return None if self._storage is None else bound_to(self._storage)

    @property
    def is_broken(self) -> bool:
        # Whether an error of the disk ended the handle on the storage. Nothing can be done with it; the next life opens another.
        return self._storage is not None and self._storage.file.ended

    def reopen(self) -> None:
        """Let the storage be opened anew when it is next used. One that is carried stays open: only the next life is given its files again.
        An error that has ended the handle on it is raised, so that this life ends."""
        if self._storage is None:
            return
        if self.services.is_carried and self._storage.exists:
            self._storage.check()
            return
        self._storage.close()
        self._storage = None

    def close(self) -> None:
        """From now on nothing of this life counts, and nothing more is written. What holds it in a circle is let go of, so that its memory
        is free at once: to search a batch of ended lives for circles kept a host from its work for a third of a second."""
        self.is_leaving = self.code.is_over = True
        if self._storage is not None:
            self._storage.close()
        self._watch = None
        self.tasks.go_unheard()
        if self._agent is not None:
            self._left, self._agent = ref(self._agent), None

    # what a kind of agent adds to it

    def part(self, kind: type[Part], make: Callable[[], Part]) -> Part:
        if kind not in self._parts:
            self._parts[kind] = make()
        found: Part = self._parts[kind]
        return found

    def drop_part(self, kind: type) -> None:
        self._parts.pop(kind, None)

    # its runs

    @property
    def is_of_run(self) -> bool:
        return bool(self._runs)

    def carries(self, run_id: str, attempt: int) -> bool:
        return self._runs.get(run_id, 0) >= attempt

    def steps(self, run_id: str) -> dict[str, bytes]:
        if run_id not in self._steps:
            self._steps[run_id] = self.storage.steps(run_id) if self.has_storage else {}
        return self._steps[run_id]

    # the author's code

    def overrides(self, hook: str) -> bool:
        return overrides(type(self.agent), hook)

    @overload
    async def call(self, method: Callable[..., Pending[T]], *args: object, **kwargs: object) -> T: ...

    @overload
    async def call(self, method: Callable[..., T], *args: object, **kwargs: object) -> T: ...

    async def call(self, method: Callable[..., object], *args: object, **kwargs: object) -> object:
        """Call an author's method: async ones on the loop, sync ones on a worker thread. What it raises that is no `Exception` is raised as
        one (`tasks.as_failure`)."""
        return await self._called(self.threads.run, method, args, kwargs)

    async def call_in_turn(self, method: Callable[..., Any], *args: object, **kwargs: object) -> Any:
        """`call` for what reaches the agent from outside: of its sync methods and handlers that are called so, one runs at a time."""
        return await self._called(self._run_in_turn, method, args, kwargs)

    async def _run_in_turn(self, job: Callable[[], object]) -> object:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        async with AsyncExitStack() as turns:
            with time_stands_still():
                turn = await turns.enter_async_context(self.threads.turn(self))
            self.services.report_turn(self.agent_id, loop.time() - began_s)
            return await self.threads.run(job, turn)

    async def _called(
        self,
        run: Callable[[Callable[[], object]], Awaitable[object]],
        method: Callable[..., Any],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> object:
        try:
            with self.code.entered(method) as call:
                if is_async(method):
                    return await method(*args, **kwargs)
                outcome = await call.on_thread(run, partial(staying, partial(method, *args, **kwargs)))
                return await outcome if inspect.isawaitable(outcome) else outcome
        except Exception:  # the common case keeps its traceback as it is
            raise
        except BaseException as raised:
            raise failure_or_itself(raised, was_awaited=True)  # noqa: B904 - what stands for it has it as its cause

    async def written(self, job: Callable[[], T], rank: Rank | None = None) -> T:
        """Do work on the storage: beside the loop if the host is crowded; here otherwise, which costs less, and in an open transaction.

        It is done to its end, and a cancellation is raised after that. Without a rank, what a call waits for goes first, and an agent
        without a storage comes last.
        """
        if not self.services.is_crowded or self.transaction is not None:
            return job()
        if rank is None:
            is_opening = self._storage is None or not self._storage.exists
            rank = Rank.CALL if RANK.get() is Rank.CALL else Rank.OPENING if is_opening else Rank.WORK
        return await self.threads.write(job, rank)

    def trouble(self, doing: str, problem: Exception) -> None:
        # No caller, run or mail carries the error. The log and the author are told.
        self.log("hook", doing, problem)
        if self.agent is not None and self.overrides("on_error") and not self.is_leaving:
            self.spawn(tried(self.call_in_turn(self.agent.on_error, problem, doing)))

    def log(self, area: str, doing: str, problem: BaseException, run_id: str = "") -> None:
        self.services.report_failure(area, self.agent_id, doing, problem, run_id)

    # the supervisor

    def push(self, stimulus: Report) -> None:
        """Say something to the supervisor, after everything that this agent has said. An end of a run that cannot be said is its error."""
        try:
            self.services.peer.report(self._with_sequence(stimulus), self.agent_id)
        except BadRequest as problem:
            if not isinstance(stimulus, Ended):
                raise
            self.push(stimulus._replace(output=None, summary="", error=in_words(problem), trace=""))

    def push_of_mail(self, said: Handled | InboxKept) -> None:
        # It need not wait for the many runs that handlers request, as other reports do: a row of the outbox stands for each.
        self.services.peer.report(said if isinstance(said, InboxKept) else self._with_sequence(said))

    async def durable(self, stimulus: Report) -> None:
        await self.services.peer.durable(self._with_sequence(stimulus))

    def _with_sequence(self, stimulus: Report) -> Report:
        # what is said of durable work says how far the storage has come
        if self._storage is None or not isinstance(stimulus, _OF_DURABLE_WORK):
            return stimulus
        return stimulus._replace(sequence=self._storage.sequence)

    async def ask(self, question: Question) -> Plain:
        self.check_open()
        return await self.services.supervisor.ask(question)

    def request(self, question: Question) -> None:
        """Ask for something that nobody here waits for. It is said again until it is answered, or this life is over."""
        answer = self.services.supervisor.question(question)
        answer.add_done_callback(lambda answer: None if answer.cancelled() else answer.exception())  # it may be refused

    # its tasks, the loop, and the threads beside it

    def spawn(self, job: Pending[T], rank: Rank = Rank.WORK) -> asyncio.Task[T]:
        """Start a task of this life, whose unexpected error ends the life. It is no part of a transaction that is open here."""
        context = self._apart(rank)
        return self.tasks.start(job, context)

    def spawn_awaited(self, job: Pending[T]) -> asyncio.Task[T]:
        return self.tasks.start_awaited(job, self._apart(Rank.WORK))

    def _apart(self, rank: Rank) -> Context:
        context = unbound()
        context.run(RANK.set, rank)
        context.run(outside_of_calls)
        return context

    async def bounded(self, job: Pending[T]) -> T:
        """What code of the author comes to, in a task of its own: if this is cancelled and that code goes on, it is waited for no longer
        than `teardown_grace_ms`. Then it is refused, and what it comes to counts for nothing."""
        context = copy_context()
        task = note_task(self.tasks.start_awaited(tried(job), context), None)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            if task.done():
                raise
            # The end of the life has cancelled it, too, and a second time would cut off what tidies up.
            names = await to_the_end(self.let_end(task) if self.is_leaving else self.give_up(task))
            if not task.done():
                raise asyncio.CancelledError(f"{', '.join(names) or 'its code'} {GOES_ON}") from None
            if task.cancelled():
                task.result()  # raises its cancellation, which may tell of a thread that goes on
        finally:
            close_unawaited(job)
        if task.cancelled():
            raise self_cancelled()
        value, problem = task.result()
        for variable, held in context.items():  # as if it had been no other task
            if variable.get(None) is not held:
                variable.set(held)
        if problem is not None:
            raise problem
        return cast("T", value)

    async def call_hook(self, hook: Callable[[], T | Awaitable[T]]) -> T:
        """What a hook gives that is called here, on the loop; if it is awaited, within `bounded`."""
        with self.code.entered(hook):
            value = hook()
        if not inspect.isawaitable(value):
            return value
        try:
            return await self.bounded(self._hooked(hook, value))
        finally:
            close_unawaited(value)

    async def _hooked(self, hook: object, value: Awaitable[T]) -> T:
        with self.code.entered(hook):
            return await value

    def give_up(self, task: asyncio.Task[object]) -> asyncio.Future[list[str]]:
        """Cancel a task. If it goes on all the same, its code is refused after a while: see `let_end`."""
        let_go = self.let_end(task)
        task.cancel()
        return let_go

    def let_end(self, task: asyncio.Task[object]) -> asyncio.Future[list[str]]:
        """The code of a task was told to stop, and is refused if it goes on after `teardown_grace_ms`. What this gives is done then, with
        the names of that code, or when the task is."""
        loop = asyncio.get_running_loop()
        let_go = loop.create_future()
        grace = loop.call_later(self.limits.teardown_grace_ms / 1000, self._let_go, let_go, task)
        task.add_done_callback(lambda _: grace.cancel())
        task.add_done_callback(partial(self._let_go, let_go))
        return let_go

    def _let_go(self, let_go: asyncio.Future[list[str]], task: asyncio.Task[object]) -> None:
        names = [] if task.done() else self.refuse([task])
        if task.done() and not task.cancelled():
            task.exception()  # asyncio would log one that has no taker
        if not let_go.done():
            let_go.set_result(names)

    def refuse(self, tasks: Iterable[asyncio.Task[object]]) -> list[str]:
        """The code of these tasks was told to stop, and goes on: storage and runtime are closed to it. Returns the names."""
        names = self.code.refuse(tasks)
        for name in names:
            self.services.report_refused(self.agent_id, name)
        return names

    def check_open(self) -> None:
        """Raise `StaleIncarnation` in code of the author that was told to stop and goes on."""
        if self.code.is_refused:
            over = "this life of the agent is over" if self.code.is_over else "this code was told to stop, and goes on"
            raise StaleIncarnation(self.agent_id, over)

    def on_loop(self, job: Callable[[], None]) -> None:
        self.services.on_loop(job)

    def bridge(self, job: Pending[T]) -> Pending[T]:
        """The way of every verb that waits to the host's loop: in its code just the coroutine; in sync code the result, for which the
        thread waits; in the code of another loop a coroutine for that one. Its type is that of async code.

        The job works in the context of its caller. A thread that waits here lends its slot. Raises `StaleIncarnation` as soon as this
        life is over.
        """
        try:
            self.check_open()
        except StaleIncarnation:
            job.close()
            raise
        if self.services.is_on_loop:
            return job
        if has_loop():
            return self._awaited_elsewhere(job)
        return cast("Pending[T]", wait_for(self._begun(job)))

    def wait_durable(self) -> None:
        """In sync code, wait until what was committed cannot be lost with this machine. Code on a loop does not wait here: it would hold
        up others, so it awaits `until_durable` of the services."""
        if self.services.is_carried and self.transaction is None and not has_loop():
            wait_for(self._begun(self.services.until_durable()))

    async def _awaited_elsewhere(self, job: Pending[T]) -> T:
        return await awaitable(self._begun(job))

    def _begun(self, job: Pending[T]) -> Future[T]:
        try:
            return self.services.from_thread(self._for_thread(job))
        except BaseException:  # it never begins
            job.close()
            raise

    def bridge_stream(self, begin: Callable[[], AsyncGenerator[T, None]]) -> Followed[T]:
        # `bridge` for what is followed: in the code of a loop an async generator, in sync code something for a `for`.
        self.check_open()
        if self.services.is_on_loop:
            return cast("Followed[T]", begin())
        stream = EventStream(lambda: EventSource(begin(), self._begun, lambda: not self.is_leaving))
        return cast("Followed[T]", aiter(stream) if has_loop() else stream)

    def on_this_loop(self, function: Callable[..., object]) -> Callable[..., object]:
        # The function; called from the host's loop it works on the one that runs now, if that is another.
        if self.services.is_on_loop or not has_loop():
            return function
        loop = asyncio.get_running_loop()

        async def called(*args: object) -> object:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self.call(function, *args), loop))

        return called

    async def _for_thread(self, job: Pending[T]) -> T:
        # What a thread waits for is a task of this life, and ends with it.
        try:
            with self.tasks.joined():
                if not self.is_leaving:
                    return await job
        except asyncio.CancelledError:
            if not self.is_leaving:
                raise
        job.close()
        raise StaleIncarnation(self.agent_id, "this life of the agent was told to stop")

    def looked(self, look: Callable[[], T]) -> T:
        # What can be seen at once, on the loop: nothing changes meanwhile, on whichever thread the caller is.
        async def now() -> T:
            return look()

        return look() if self.services.is_on_loop else cast("T", self.bridge(now()))

    def done(self) -> Pending[None]:
        # A thread waits for the loop's turn even so, lest it run away from the loop. For that it lends no slot.
        if self.services.is_on_loop:
            return _nothing()
        if has_loop():
            return self._awaited_elsewhere(_nothing())
        return cast("Pending[None]", self.services.from_thread(_nothing()).result())

    def touch(self) -> None:
        self.idle_since_s = asyncio.get_running_loop().time()

    @contextmanager
    def kept_awake(self) -> Iterator[None]:
        vigil = object()
        self._vigils.add(vigil)  # on whichever thread
        try:
            yield
        finally:
            self._vigils.discard(vigil)
            self.on_loop(self.touch)


async def _nothing() -> None:
    return None
