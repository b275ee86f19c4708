"""The class that an author subclasses.

    class Importer(Agent):
        async def run(self, input: ImportInput, run: RunContext) -> ImportResult: ...

Perdure keeps its own data of an object in one attribute, `_perdure`. Methods for the runtime only begin with `_perdure_`. Common verbs are
methods of the agent. Rare ones are in groups: `self.fibers`, `self.schedules`, `self.queued`, `self.sub_agents`, `self.storage`.

A verb that waits gives an awaitable in async code. In sync code it blocks and gives the value. It is typed as the awaitable, because type
checkers cannot tell which code is async; `blocking` gives it the other type. Async code may run on a loop of the author's own, such as
`asyncio.run` in a sync method, or on a thread with a loop. Threads work for the code that has started them: for its run, and within its
transaction as long as that is open.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, ClassVar, Literal, TypeVar, Unpack, cast, overload

from perdure.actors.agent.exposing import verb
from perdure.actors.agent.groups import (
    FiberGroup,
    Hosted,
    OwnStorage,
    QueueGroup,
    ScheduleGroup,
    SubAgentGroup,
    shown_item,
    shown_schedule,
)
from perdure.actors.code.author_call import SUMMARY_CHARS_MAX, hook, without_middle
from perdure.actors.code.known_types import claim, note_program
from perdure.actors.code.schema import in_short
from perdure.actors.event_stream import Followed
from perdure.actors.jobs.callback_rows import QueuedItem, Schedule
from perdure.actors.jobs.fiber import FiberInspection, FiberPage
from perdure.actors.jobs.fiber_context import CURRENT, FiberContext, FiberRecovery
from perdure.actors.jobs.fiber_requests import FiberOptions
from perdure.actors.jobs.schedule_requests import CallbackOptions, every, instant, queued, timed
from perdure.actors.life.activity import ACTIVITY, CALL
from perdure.actors.life.asks import Answer, AskOptions
from perdure.actors.life.child_types import AsyncChild, AsyncInputless, Child, Inputless, RunOptions
from perdure.actors.life.class_options import BOUNDS, check_made, pass_on
from perdure.actors.life.host_options import Checks
from perdure.actors.life.results import Detached, RunHandle, RunHandles, RunInfo, RunResult, statuses_of
from perdure.actors.life.run_context import RunContext
from perdure.actors.life.run_requests import AsyncRequests, Requests
from perdure.actors.link.questions import ListRuns
from perdure.actors.tasks import Pending
from perdure.ledger import (
    AwaitedInsideHandler,
    BadRequest,
    Cancel,
    check_id,
    check_ms,
    check_text,
    check_whole,
    path_of,
)
from perdure.ledger.storage.agent_storages import State
from perdure.policies import FiberResult, Retries

A = TypeVar("A", bound="Agent")
T = TypeVar("T")
Input = TypeVar("Input")
Output = TypeVar("Output")


class Agent(Hosted):
    """A durable entity, addressed by type and name, with storage of its own and at most one live incarnation.

    Class attributes are limits and placement; every one has a default. `None` takes the runtime's limit.
    """

    attempts_max: ClassVar[int | None] = None
    max_concurrent_agent_tools: float = math.inf
    agent_tool_reattach_no_progress_timeout_ms: ClassVar[float | None] = None
    agent_tool_reattach_max_window_ms: ClassVar[float | None] = None
    detached_max_budget_ms: ClassVar[float | None] = None
    detached_no_progress_budget_ms: ClassVar[float | None] = None
    exclusive: ClassVar[bool] = False
    num_cpus: ClassVar[float] = 0.0
    num_gpus: ClassVar[float] = 0.0
    memory: ClassVar[float] = 0
    accelerator_type: ClassVar[str | None] = None
    label_selector: ClassVar[dict[str, str]] = {}
    resources: ClassVar[dict[str, float]] = {}
    runtime_env: ClassVar[dict[str, Any]] = {}
    callback_retry: ClassVar[Retries | Mapping[str, object] | None] = None
    stands_alone: ClassVar[bool] = False
    """Whether a call from outside may create an agent of this class, although the class has a `run`. Otherwise its agents come to life as
    children of runs and as sub-agents alone, and a guessed name is refused. A class without a `run` always stands alone."""

    def __init_subclass__(cls, *, name: str = "", version: int | None = None, **more: object) -> None:
        """Take `class Counter(Agent, name="counter", version=2)`.

        Args:
            name: the durable name of this type, under which its agents are found wherever its code is moved to. Without one it is made of
                the module and the class. To go on with the agents of a class that was moved, give the name that it had:
                `name="old_module:Counter"`.
            version: the version of what its agents keep, 1 by default. An agent whose storage is of an earlier one is brought to this one
                by `migrate`.
        """
        pass_on(super().__init_subclass__, more)
        check_made(cls)
        note_program(cls)
        if name:
            claim(cls, name)
        if version is not None:
            cls.__perdure_version__ = check_whole("version", version)

    _perdure_bounds: ClassVar[Checks] = BOUNDS
    __perdure_version__: ClassVar[int] = 1

    @classmethod
    @hook
    def prepare(cls) -> None:
        """Load what takes long. It may be called, on a thread, in processes that may get agents of this class."""

    # what the agent is and has

    @property
    def name(self) -> str:
        """The agent's own name, without its ancestors; for the child of a run it is the run's id."""
        return self._perdure.name

    def sql(self, query: str, parameters: Sequence[Any] | dict[str, Any] | None = None) -> list[tuple[Any, ...]]:
        """Run SQL on the agent's storage: in the open transaction, or else durable on return."""
        return self._perdure.storage.sql(query, parameters)

    def transaction(self) -> AbstractContextManager[object]:
        """A block that takes effect as a whole or not at all: SQL, `state`, and requests to the runtime."""
        return self._perdure.outbox.transact()

    @property
    def state(self) -> State:
        """A small durable mapping of plain data. Assign a key to change it, or all of it at once. Values that you read are copies: to add
        an item say `self.state["items"] = [*self.state.get("items", []), item]`, since `append` would change only the copy."""
        return self._perdure.storage.state

    @state.setter
    def state(self, values: Mapping[str, object]) -> None:
        self.state.replace(values)

    # what an author overrides

    @hook
    async def on_start(self) -> None:
        """Called when the agent is woken, before any other work of this life."""

    @hook
    def migrate(self, from_version: int) -> None:
        """Called once when the class has a newer `version` than what the agent keeps, before `on_start`, in a transaction. It may be async.

        If it raises, everything stays as it was, and the agent does not come up: `MigrationFailed`.
        """

    @hook
    async def on_agent_tool_start(self, run: RunInfo) -> None:
        """Called before a run is requested, once for each run. An exception refuses the run.

        A run that a transaction or a handler requests begins with the commit. For such a run the hook is called after acceptance, as a
        handler: in a transaction, exactly once in effect. It cannot refuse the run. If it raises it is retried.
        """

    @hook
    async def on_agent_tool_finish(self, run: RunInfo, result: RunResult[Any]) -> None:
        """Called once for every end of a run of this agent, in the transaction that consumes it, before a named handler."""

    @hook
    async def on_progress(self, run: RunInfo, progress: dict[str, Any]) -> None:
        """Called at best effort for progress and milestones of this agent's runs, while the agent is awake."""

    @hook
    @verb
    async def on_before_sub_agent(self, agent_type: str, name: str) -> bool:
        """Return whether a call from outside may reach a child of this agent. Called for every such call.

        By default it may reach a known sub-agent, and the child of a run that was started here. If a sub-agent does not exist, True
        creates it. False is told as if there were none; a `PermissionError` is told as a refusal, with its words (`AgentForbidden`).
        """
        return await self._perdure.family.is_child(agent_type, name)

    @hook
    def validate_state(self, state: dict[str, Any]) -> None:
        """Called before `state` changes, with its new value. An exception refuses the change."""

    @hook
    async def on_state_changed(self, state: dict[str, Any]) -> None:
        """Called at best effort after `state` has changed durably. Several changes may be reported as one."""

    @hook
    async def on_error(self, error: Exception, doing: str) -> None:
        """Called at best effort when a hook or background work fails and no caller, run or mail carries the error."""

    @hook
    async def on_fiber_recovered(self, fiber: FiberRecovery) -> FiberResult | str | dict[str, Any] | None:
        """Decide about a fiber whose process died. Called when the agent is up again.

        Return a `FiberResult`, its status alone, or a dictionary of its fields; `"retry"` enters the fiber again. None leaves the decision
        to its `retry`; without one the fiber stays interrupted until `resolve_fiber`. Anything else is an error, and leaves it interrupted.
        The hook is called again after a pause if it raises, dies, or takes longer than `Limits.fiber_recovery_timeout_ms`;
        `fiber.recoveries` counts the calls. For a fiber of `run_fiber` the return value is ignored.
        """
        return None

    @hook
    def get_agent_tool_summary(self, output: Any, run: RunContext) -> str:
        """Return the summary of a run of this agent, for notices and lists; sync or async. By default a text is its own summary, without
        its middle if it is long, and anything else is shown as JSON, shortened. Summaries stay in the supervisor's memory."""
        return without_middle(output, SUMMARY_CHARS_MAX) if isinstance(output, str) else in_short(output)

    # agents as tools

    @overload
    def run_agent_tool(
        self,
        agent_class: AsyncInputless[Output],
        input: None = None,
        *,
        detached: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> Pending[RunResult[Output]]: ...
    @overload
    def run_agent_tool(
        self,
        agent_class: Inputless[Output],
        input: None = None,
        *,
        detached: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> Pending[RunResult[Output]]: ...
    @overload
    def run_agent_tool(
        self,
        agent_class: AsyncChild[Input, Output],
        input: Input,
        *,
        detached: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> Pending[RunResult[Output]]: ...
    @overload
    def run_agent_tool(
        self,
        agent_class: Child[Input, Output],
        input: Input,
        *,
        detached: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> Pending[RunResult[Output]]: ...
    @overload
    def run_agent_tool(
        self,
        agent_class: Inputless[object],
        input: None = None,
        *,
        detached: Detached | Literal[True],
        **options: Unpack[RunOptions],
    ) -> RunHandle: ...
    @overload
    def run_agent_tool(
        self,
        agent_class: Child[Input, object],
        input: Input,
        *,
        detached: Detached | Literal[True],
        **options: Unpack[RunOptions],
    ) -> RunHandle: ...

    def run_agent_tool(
        self,
        agent_class: type,
        input: object = None,
        *,
        detached: bool | Detached = False,
        **options: Unpack[RunOptions],
    ) -> Any:
        """Run a child agent as a tool, and wait for its `RunResult`; with `detached`, get a `RunHandle` once the request is durable.

        The same `run_id` with the same content never starts a second child. Without one an id is derived from the caller and the
        content. In a transaction only detached runs can be requested; they begin with its commit. The options are those of `RunOptions`.
        Raises `ConflictingRequest` for a known id with other content, and `BadRequest`.
        """
        return self._perdure.dispatch.run(agent_class, input, detached=detached, **options)

    @overload
    def run_agent_tools(
        self, requests: AsyncRequests[Input, Output], *, detached: Literal[False] = False
    ) -> Pending[list[RunResult[Output]]]: ...
    @overload
    def run_agent_tools(
        self, requests: Requests[Input, Output], *, detached: Literal[False] = False
    ) -> Pending[list[RunResult[Output]]]: ...
    @overload
    def run_agent_tools(
        self, requests: Sequence[Mapping[str, object]], *, detached: Literal[False] = False
    ) -> Pending[list[RunResult]]: ...
    @overload
    def run_agent_tools(
        self, requests: Sequence[tuple[Child[Input, object], Input]], *, detached: Detached | Literal[True]
    ) -> RunHandles: ...
    @overload
    def run_agent_tools(
        self, requests: Sequence[Mapping[str, object]], *, detached: Detached | Literal[True]
    ) -> RunHandles: ...

    def run_agent_tools(self, requests: Sequence[Any], *, detached: bool | Detached = False) -> Any:
        """Request many runs at once, and get their results in the same order.

        A request is a pair of class and input, or a dictionary of `run_agent_tool`'s arguments with the class under `agent_class`. The
        output of the latter is not typed. To type checkers the pairs of a list are of one class; for several, write dictionaries.
        """
        return self._perdure.dispatch.run_many(requests, detached=detached)

    @overload
    def as_completed(self, requests: AsyncRequests[Input, Output]) -> Followed[RunResult[Output]]: ...
    @overload
    def as_completed(self, requests: Requests[Input, Output]) -> Followed[RunResult[Output]]: ...
    @overload
    def as_completed(self, requests: Sequence[Mapping[str, object]]) -> Followed[RunResult]: ...

    def as_completed(self, requests: Sequence[Any]) -> Followed[RunResult]:
        """Request many runs like `run_agent_tools`, and iterate over their results in the order of completion: by `async for`, or by `for`
        in sync code."""
        return self._perdure.dispatch.as_completed(requests)

    @overload
    def first_ok(self, n: int, requests: AsyncRequests[Input, Output]) -> Pending[list[RunResult[Output]]]: ...
    @overload
    def first_ok(self, n: int, requests: Requests[Input, Output]) -> Pending[list[RunResult[Output]]]: ...
    @overload
    def first_ok(self, n: int, requests: Sequence[Mapping[str, object]]) -> Pending[list[RunResult]]: ...

    def first_ok(self, n: int, requests: Sequence[Any]) -> Any:
        """Request many runs like `run_agent_tools`, and get the results of the first `n` that complete, in that order. The others are
        cancelled at once, also while this agent is away, and a run that is entered again gets the same. Raises `RunFailed` as soon as too
        many have failed."""
        return self._perdure.dispatch.first_ok(n, requests)

    def cancel_agent_tool(self, run_id: str, reason: str = "cancelled") -> Awaitable[Any]:
        """Cancel a run of this agent, and the runs that its child waits for. Durable on return. An ended run stays as it is. One that has
        begun a step with an `undo` is aborted when its steps are undone."""
        asked = Cancel(run_id, self._perdure.agent_id, check_text("reason", reason))
        return self._perdure.bridge(self._perdure.ask(asked))

    def send_event(self, run: str | RunHandle, event: str, value: object = None, event_id: str | None = None) -> Any:
        """Send an event to a run, which takes it by `run.wait_for(event)`: exactly once, and those of one sender in their order.

        In a transaction or handler it is sent with the commit (what is refused then is told to `on_error`), elsewhere durable on return:
        async code awaits it. Raises `EventRefused` for a run that has ended. The same `event_id` is the same event each time.
        """
        return self._perdure.family.send(run.run_id if isinstance(run, RunHandle) else run, event, value, event_id)

    def inspect_agent_tool_run(self, run_id: str) -> Pending[dict[str, Any] | Any]:
        """Return the status, outcome, progress and milestones of a run. None means *not known yet*, never failed."""
        return self._perdure.bridge(self._perdure.dispatch.inspect(run_id))

    @verb
    async def has_agent_tool_run(self, agent_class: type | str, run_id: str) -> bool:
        """Return whether this agent has a started run of that class under that id."""
        return await self._perdure.dispatch.has(agent_class, run_id)

    def list_agent_tool_runs(
        self, status: Sequence[str] | None = None, *, limit: int = 1000
    ) -> Pending[list[dict[str, Any]]]:
        """Return this agent's runs, oldest first."""
        asked = ListRuns(self._perdure.agent_id, statuses_of(status), None, check_whole("limit", limit))
        return self._perdure.bridge(self._perdure.ask(asked))

    def clear_agent_tool_runs(
        self, *, status: Sequence[str] | None = None, older_than: float | datetime | None = None
    ) -> Pending[int]:
        """Delete retained runs and their children's storage: those with one of these statuses, requested before an instant (milliseconds
        since the epoch, or an aware datetime). Live runs are cancelled first. Returns how many were cleared."""
        before_ms = None if older_than is None else instant("older_than", older_than)
        return self._perdure.bridge(self._perdure.dispatch.clear(statuses_of(status), before_ms))

    # people

    @overload
    def ask(
        self, question: str, schema: object = bool, *, then: None = None, **options: Unpack[AskOptions]
    ) -> Pending[Answer]: ...
    @overload
    def ask(
        self, question: str, schema: object = bool, *, then: str | Callable[..., object], **options: Unpack[AskOptions]
    ) -> RunHandle: ...

    def ask(self, question: str, schema: object = bool, *, then: object = None, **options: Unpack[AskOptions]) -> Any:
        """Ask people something, and wait for the answer. Await it in async code. The arguments, but for `via`, and the answer
        are those of `RunContext.ask`, which this is in the code of a `run`.

        Elsewhere the question is a run of its own. Code that is entered again after a death, as a fiber is, finds it open or answered, by
        the order of its questions. It is cancelled with the code that waits for it. If it is cancelled otherwise, `RunFailed` is raised.

        A transaction or a handler cannot wait. With `then`, a method of this agent, it gets the `RunHandle` of the question, which is asked
        with the commit (elsewhere it is durable on return; await it in async code). Then `method(answer)` is called exactly once, in a
        transaction: with the `Answer`, or with `NoAnswer`, which is false. `schema` has to be found again after a death: a class, a list of
        choices, or a type that is made of those.
        """
        return self._perdure.asking.ask(question, schema, then, **options)

    def report_progress(self, fraction: float | None = None, **signal: Any) -> Awaitable[None]:
        """Report progress of the current run; see `RunContext.report_progress`. Outside of a run it only warns."""
        activity = ACTIVITY.get()
        if activity is None or activity.run is None:
            words = "report_progress was called outside of a run; nothing was reported"
            warnings.warn(words, RuntimeWarning, stacklevel=2)
            return self._perdure.done()
        return activity.run.report_progress(fraction, **signal, source=CALL.get())

    # durable jobs of its own

    @overload
    def run_fiber(self, name: str, fn: Callable[[FiberContext], Pending[T]]) -> Pending[T]: ...
    @overload
    def run_fiber(self, name: str, fn: Callable[[FiberContext], T]) -> Pending[T]: ...

    def run_fiber(self, name: str, fn: Callable[[FiberContext], object]) -> Any:
        """Run a function now, and detect a death of the process: `await self.run_fiber("import", self.work)`.

        Returns what `fn` returns, and keeps nothing of it. After a death `on_fiber_recovered` is called with the last stashed value. The
        function cannot be entered again, unlike the method of a `start_fiber`.
        """
        check_id("name", name, self._perdure.limits.id_max)
        if not callable(fn):
            raise BadRequest("fn", f"{fn!r} cannot be called")
        if self._perdure.transaction is not None:
            words = "a transaction cannot wait for a fiber; start_fiber begins one when it commits"
            raise AwaitedInsideHandler("fn", words)
        return self._perdure.bridge(self._perdure.fibers.run(name, self._perdure.on_this_loop(fn)))

    def stash(self, data: object) -> bool:
        """Store a value with the current fiber; see `FiberContext.stash`."""
        fiber = CURRENT.get()
        if fiber is None:
            raise BadRequest("stash", "stash() was called outside of a fiber")
        return fiber.stash(data)

    @overload
    def start_fiber(
        self,
        name: str,
        fn_name: str | Callable[..., object],
        input: object = None,
        *,
        wait_for_completion: Literal[False] = False,
        **options: Unpack[FiberOptions],
    ) -> FiberInspection: ...
    @overload
    def start_fiber(
        self,
        name: str,
        fn_name: str | Callable[..., object],
        input: object = None,
        *,
        wait_for_completion: Literal[True],
        timeout_ms: float | None = None,
        **options: Unpack[FiberOptions],
    ) -> Pending[FiberInspection]: ...

    def start_fiber(
        self,
        name: str,
        fn_name: str | Callable[..., object],
        input: object = None,
        *,
        wait_for_completion: bool = False,
        timeout_ms: float | None = None,
        **options: Unpack[FiberOptions],
    ) -> Any:
        """Accept a durable job: a method of this agent, called with `(fiber, input)`. Returns its `FiberInspection`.

        For a known id or key the existing fiber is returned, with `accepted` False. With other content this raises `ConflictingRequest`.
        Without id and key an id is derived from the caller and the content.

        Args:
            wait_for_completion: return when the fiber has ended, also after deaths. Await it in async code.
            timeout_ms: the longest wait. After it the fiber goes on.
            options: see `FiberOptions`.
        """
        tenant, fibers = self._perdure, self._perdure.fibers
        if timeout_ms is not None:
            check_ms("timeout_ms", timeout_ms)
        if wait_for_completion and tenant.transaction is not None:
            words = "nobody can wait inside a transaction or a handler: the fiber begins with its commit"
            raise AwaitedInsideHandler("wait_for_completion", words)
        asked = fibers.requests.checked(name, fn_name, input, **options)
        ((fiber, is_new),) = fibers.requests.accept([fibers.requests.named(asked)])
        if wait_for_completion:
            return tenant.bridge(fibers.waiters.settled(fiber.fiber_id, timeout_ms, accepted=is_new))
        return fibers.store.inspected(fiber, accepted=is_new)

    def inspect_fiber(self, fiber_id: str) -> FiberInspection | None:
        """Return a fiber, or None if the id is unknown."""
        return self._perdure.fibers.store.inspect(check_id("fiber_id", fiber_id, self._perdure.limits.id_max))

    def inspect_fiber_by_key(self, idempotency_key: str) -> FiberInspection | None:
        """Return the fiber that was accepted under a key, or None."""
        check_id("idempotency_key", idempotency_key, self._perdure.limits.id_max)
        fiber_id = self._perdure.fibers.store.id_of_key(idempotency_key)
        return None if fiber_id is None else self._perdure.fibers.store.inspect(fiber_id)

    def list_fibers(
        self,
        status: str | Sequence[str] | None = None,
        name: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> FiberPage:
        """Return a page of this agent's fibers, newest first, at most 500. `cursor` is that of the previous page."""
        return self._perdure.fibers.records.page(status, name, limit, cursor)

    def cancel_fiber(self, fiber_id: str, reason: str | None = None) -> bool:
        """End a fiber at once as `aborted`, durably. Returns whether it was open.

        Its async code is cancelled; sync code can check `fiber.is_cancelled`. Code that goes on cannot change the fiber, and after
        `Limits.teardown_grace_ms` nothing of the agent. Its effects outside of the agent cannot be stopped.
        """
        check_id("fiber_id", fiber_id, self._perdure.limits.id_max)
        return self._perdure.fibers.cancel(fiber_id, None if reason is None else str(reason))

    def cancel_fiber_by_key(self, idempotency_key: str, reason: str | None = None) -> bool:
        """Cancel the fiber that was accepted under a key; see `cancel_fiber`."""
        check_id("idempotency_key", idempotency_key, self._perdure.limits.id_max)
        fiber_id = self._perdure.fibers.store.id_of_key(idempotency_key)
        return fiber_id is not None and self.cancel_fiber(fiber_id, reason)

    def resolve_fiber(self, fiber_id: str, result: FiberResult | str | Mapping[str, object]) -> bool:
        """Settle an interrupted fiber, or enter it again with `"retry"`. Returns False if it is not interrupted.

        `result` is a `FiberResult`, its status, or a dictionary of its fields.
        """
        check_id("fiber_id", fiber_id, self._perdure.limits.id_max)
        return self._perdure.fibers.resolve(fiber_id, result)

    def delete_fibers(
        self,
        settled_before: float | datetime | None = None,
        status: str | Sequence[str] | None = None,
        limit: int = 100,
    ) -> int:
        """Delete records of settled fibers, oldest first. Returns how many. Their ids and keys become free.

        Args:
            settled_before: only fibers settled before this instant: milliseconds since the epoch, or an aware datetime.
            status: only fibers with these statuses. By default all but `interrupted`, which wait for a person.
        """
        return self._perdure.fibers.records.delete(settled_before, status, limit)

    # times

    def schedule(
        self,
        when: datetime | timedelta | float | str,
        callback: str | Callable[..., object],
        payload: object = None,
        *,
        key: str | None = None,
        time_zone: str = "UTC",
        catch_up: str = "once",
        overlap: str = "skip",
        retry: Retries | Mapping[str, object] | None = None,
        jitter_ms: float = 0,
        schedule_id: str | None = None,
    ) -> Schedule:
        """Call a callback at a time: an aware datetime, seconds or a `timedelta` from now, or a cron text of five fields.

        It is never called early. A time in the past is due at once. `policies.schedule` explains cron schedules when clocks change,
        missed ticks (`catch_up`) and ticks while the callback runs (`overlap`).

        With a `key` the same request finds the existing schedule, at whatever time; other content replaces it in `on_start`, and is a
        `ConflictingRequest` elsewhere. The key is free again when the schedule is done. A cron schedule needs no key: the same text, zone,
        callback and payload are the same schedule, which takes the other arguments of the latest request. If `on_start` declares it with
        another time than before, the earlier one is cancelled; one that it does not declare any more goes on, with a warning.

        Args:
            payload: plain data.
            time_zone: of a cron text; a name of the tz database.
            retry: a `Retries`, or a dictionary of its fields.
            jitter_ms: the largest random delay of each call.
            schedule_id: instead of a key.

        Raises `BadRequest`, with the field; then nothing was written.
        """
        tenant = self._perdure
        options: CallbackOptions = {
            "key": key, "retry": retry, "schedule_id": schedule_id, "time_zone": time_zone,
            "catch_up": catch_up, "overlap": overlap, "jitter_ms": jitter_ms,
        }  # fmt: skip
        schedules = tenant.schedules
        return shown_schedule(tenant, schedules.add(timed(tenant, when, callback, payload, tenant.now_ms(), options)))

    def schedule_every(
        self,
        interval_s: float | timedelta,
        callback: str | Callable[..., object],
        payload: object = None,
        *,
        key: str | None = None,
        catch_up: str = "once",
        overlap: str = "skip",
        retry: Retries | Mapping[str, object] | None = None,
        jitter_ms: float = 0,
        schedule_id: str | None = None,
    ) -> Schedule:
        """Call a callback every `interval_s` seconds (or a `timedelta`), first after one interval. The times do not drift.

        The same interval, callback and payload are the same schedule, as for cron texts.
        """
        tenant = self._perdure
        options: CallbackOptions = {
            "key": key, "retry": retry, "schedule_id": schedule_id,
            "catch_up": catch_up, "overlap": overlap, "jitter_ms": jitter_ms,
        }  # fmt: skip
        schedules = tenant.schedules
        return shown_schedule(
            tenant, schedules.add(every(tenant, interval_s, callback, payload, tenant.now_ms(), options))
        )

    def queue(
        self,
        callback: str | Callable[..., object],
        payload: object = None,
        *,
        key: str | None = None,
        retry: Retries | Mapping[str, object] | None = None,
    ) -> QueuedItem:
        """Call a callback after those queued before it: in order, one at a time.

        An item that fails or is parked does not delay the others. With a `key` the same request finds the waiting item; other content is
        a `ConflictingRequest`.
        """
        tenant = self._perdure
        options: CallbackOptions = {"key": key, "retry": retry}
        line = tenant.callback_queue
        return shown_item(tenant, line.add(queued(tenant, callback, payload, tenant.now_ms(), options)))

    # relatives, and its own life

    def sub_agent(self, agent_class: type[A], name: str) -> A:
        """A typed handle of a sub-agent: an agent with its own storage that belongs to this one.

        It is recorded at the first request, and starts with the first call. Errors of its methods are raised here. Raises `BadRequest`
        for a class that is no agent, and for an invalid name.
        """
        return cast("A", self._perdure.family.child(agent_class, name))

    def agent(self, agent_class: type[A], name: str) -> A:
        """A typed handle of an agent that is no relative of this one, as a client has it. Starts nothing."""
        return cast("A", self._perdure.family.other(agent_class, name))

    @property
    def parent(self) -> Any:
        """A handle of the agent whose sub-agent this is, or None."""
        return self._perdure.family.parent()

    @property
    def path(self) -> list[tuple[str, str]]:
        """The ancestors of this agent from the root, then itself: pairs of type and name."""
        return path_of(self._perdure.agent_id)

    def destroy(self) -> Awaitable[None]:
        """Delete this agent and all its descendants. The agent may end before the call returns."""
        return self._perdure.bridge(self._perdure.family.destroy())

    def keep_alive(self) -> AbstractContextManager[None]:
        """A block during which the agent is not passivated. It does not outlive the process."""
        return self._perdure.kept_awake()

    # what is rarely done

    @property
    def fibers(self) -> FiberGroup:
        """Start many fibers in one commit; wait for one."""
        return FiberGroup(self._perdure)

    @property
    def schedules(self) -> ScheduleGroup:
        """List, cancel, pause, resume and retry schedules."""
        return ScheduleGroup(self._perdure)

    @property
    def queued(self) -> QueueGroup:
        """List, drop and retry queued items."""
        return QueueGroup(self._perdure)

    @property
    def sub_agents(self) -> SubAgentGroup:
        """List, abort and delete sub-agents."""
        return SubAgentGroup(self._perdure)

    @property
    def storage(self) -> OwnStorage:
        """Copy the whole storage: snapshot, restore, fork."""
        return OwnStorage(self._perdure)
