"""The class that an author subclasses. It costs one base class and no configuration.

    class Importer(Agent):
        async def run(self, input: ImportInput, run: RunContext) -> ImportResult: ...

The class is the author's. Everything that Perdure keeps on an object of it is under one attribute, `_perdure`; what is there for the
runtime alone has a name that begins with `_perdure_`. What an author does every day is a method of the agent; what is rare is in a group:
`self.fibers`, `self.schedules`, `self.queued`, `self.sub_agents`, `self.storage`.

A verb that waits gives an awaitable in async code. In sync code it blocks and gives the value. It is typed as the awaitable, because type
checkers cannot see which of the two a line of code is; `blocking` gives it the other type.

Callbacks of schedules and of the queue are methods of the agent, named or themselves. They are called as `callback(payload,
occurrence)` inside one transaction of the agent's storage, which also consumes the occurrence. So what a callback does to the storage,
and what it asks for (runs, fibers, submissions, other schedules), happens exactly once, however often the process dies. It should be
short: nobody sees what it writes until it returns, and other work on the same rows has it called again. Long work belongs into a fiber
or a run that it starts. A callback that raises is tried again with growing pauses (`retry`; else `callback_retry` of the class; else
`Limits`). When its tries are used up a recurring schedule goes on with its next occurrence and keeps the failure in its history;
everything else is *parked*: it stays, with its error, until it is retried or cancelled.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, ClassVar, Literal, TypeVar, Unpack, cast, overload

from perdure.actors.agent.groups import (
    FiberGroup,
    OwnStorage,
    QueueGroup,
    ScheduleGroup,
    SubAgentGroup,
    shown_item,
    shown_schedule,
)
from perdure.actors.code.author_call import hook
from perdure.actors.host.tenant import Tenant
from perdure.actors.jobs.fiber import FiberInspection, FiberPage
from perdure.actors.jobs.fiber_context import CURRENT, FiberContext, FiberRecovery
from perdure.actors.jobs.fiber_requests import FiberOptions
from perdure.actors.jobs.occurrence import QueuedItem, Schedule
from perdure.actors.jobs.schedule_requests import Asked, every, instant, queued, timed
from perdure.actors.life.activity import ACTIVITY
from perdure.actors.life.child_types import AsksNothing, AsyncAsksNothing, AsyncChild, Child, RunOptions
from perdure.actors.life.results import Detached, RunHandle, RunHandles, RunInfo, RunResult
from perdure.actors.link.messages import ListRuns
from perdure.actors.tasks import Pending
from perdure.ledger import AwaitedInsideHandler, BadRequest, Cancel, check_id, check_ms, path_of
from perdure.ledger.storage.cabinet import State
from perdure.policies import FiberResult, Retries

A = TypeVar("A", bound="Agent")
T = TypeVar("T")
Input = TypeVar("Input")
Output = TypeVar("Output")


class Agent:
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
    resources: ClassVar[dict[str, float]] = {}
    runtime_env: ClassVar[dict[str, Any]] = {}

    callback_retry: ClassVar[Retries | dict[str, Any] | None] = None

    _perdure: Tenant
    _perdure_recalls_results: ClassVar[bool] = (
        False  # whether `run`, entered again after its end, gives the same result at once
    )

    @classmethod
    def prepare(cls) -> None:
        """Load what takes long. Called on a thread of a process that may get agents of this class; it need not be called at all."""

    # what the agent is and has

    @property
    def name(self) -> str:
        """The agent's name; for the child of a run it is the run's id."""
        return self._perdure.name

    def sql(self, query: str, parameters: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """Run SQL on the agent's own storage: in the open transaction if there is one, else durable on return."""
        return self._perdure.storage.sql(query, parameters)

    def transaction(self) -> AbstractContextManager[object]:
        """A block that takes effect as a whole or not at all: SQL, `state`, and whatever the runtime is asked for in it."""
        return self._perdure.outbox.transact()

    @property
    def state(self) -> State:
        """A small durable mapping of plain data. Assign to change it; a value that was read is a copy."""
        return self._perdure.storage.state

    # what an author overrides

    @hook
    async def on_start(self) -> None:
        """Called when the agent is woken, before any other work of this life."""

    @hook
    async def on_agent_tool_start(self, run: RunInfo) -> None:
        """Called before a run is asked for, once for each run. An exception refuses it, and nothing has happened.

        A run that a transaction or a handler asks for begins when that commits. For such a run the hook is a handler: it is called after
        the run was accepted, in a transaction, exactly once in effect. It cannot refuse the run; if it raises it is tried again.
        """

    @hook
    async def on_agent_tool_finish(self, run: RunInfo, result: RunResult[Any]) -> None:
        """Called once for every end of a run of this agent, in the transaction that consumes it, before a named handler."""

    @hook
    async def on_progress(self, run: RunInfo, progress: dict[str, Any]) -> None:
        """Called at best effort for progress and milestones of this agent's runs, while the agent is awake."""

    async def on_before_sub_agent(self, agent_type: str, name: str) -> bool:
        """Return whether a call from outside may reach a child of this agent. Asked for every call that passes through this agent.

        By default it may reach a known sub-agent, and the child of a run that was started here (spec W-50). If a call may pass to a
        sub-agent that does not exist, the sub-agent is created.
        """
        if self._perdure.family.has(agent_type, name):
            return True
        run = await self.inspect_agent_tool_run(name)
        return run is not None and run["agent_type"] == agent_type and run["attempt"] > 0

    @hook
    def validate_state(self, state: dict[str, Any]) -> None:
        """Called before `state` changes, with its new value. An exception refuses the change, and nothing is written."""

    @hook
    async def on_state_changed(self, state: dict[str, Any]) -> None:
        """Called at best effort after `state` has changed durably, with its value. Several changes may come as one."""

    @hook
    async def on_error(self, error: Exception, doing: str) -> None:
        """Called at best effort when a hook or background work fails and no caller, run or mail carries the error."""

    @hook
    async def on_fiber_recovered(self, fiber: FiberRecovery) -> FiberResult | str | None:
        """Decide what becomes of a fiber whose process died. Called when the agent is up again.

        Return a `FiberResult`, or `"retry"` to enter the fiber again. None leaves the decision to its `retry`; without one the fiber stays
        interrupted until `resolve_fiber`. The hook is called at least once for each interruption. It is called again after a pause if it
        raises, dies, or takes longer than `Limits.fiber_recovery_timeout_ms`; `fiber.recoveries` counts the calls. For a fiber of
        `run_fiber` the return value is ignored. Without this hook `retry` decides alone.
        """
        return None

    def _perdure_woken(self) -> None:
        """Take up what an earlier life left undone. Called after `on_start` if the agent has a storage."""

    # agents as tools

    @overload
    def run_agent_tool(
        self,
        agent_class: type[AsyncAsksNothing[Output]],
        input: None = None,
        *,
        detached: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> Pending[RunResult[Output]]: ...
    @overload
    def run_agent_tool(
        self,
        agent_class: type[AsksNothing[Output]],
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
        agent_class: type[AsksNothing[object]],
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
        agent_class: type[Any],
        input: Any = None,
        *,
        detached: bool | Detached = False,
        **options: Unpack[RunOptions],
    ) -> Any:
        """Run a child agent as a tool, and wait for its `RunResult`; with `detached`, get a `RunHandle` once the request is durable.

        The same `run_id` with the same content never starts a second child; without one an id is derived from where and what is
        asked. Inside a transaction only detached runs can be asked for, and they begin when it commits. The options are those of
        `RunOptions`. Raises `ConflictingRequest` for an id that names other content, and `BadRequest` for what cannot be asked for.
        """
        return self._perdure.dispatch.run(agent_class, input, detached=detached, **options)

    @overload
    def run_agent_tools(
        self, requests: Sequence[tuple[AsyncChild[Input, Output], Input]], *, detached: Literal[False] = False
    ) -> Pending[list[RunResult[Output]]]: ...
    @overload
    def run_agent_tools(
        self, requests: Sequence[tuple[Child[Input, Output], Input]], *, detached: Literal[False] = False
    ) -> Pending[list[RunResult[Output]]]: ...
    @overload
    def run_agent_tools(
        self, requests: Sequence[Mapping[str, object]], *, detached: Literal[False] = False
    ) -> Pending[list[RunResult[Any]]]: ...
    @overload
    def run_agent_tools(
        self, requests: Sequence[tuple[Child[Input, object], Input]], *, detached: Detached | Literal[True]
    ) -> RunHandles: ...
    @overload
    def run_agent_tools(
        self, requests: Sequence[Mapping[str, object]], *, detached: Detached | Literal[True]
    ) -> RunHandles: ...

    def run_agent_tools(self, requests: Sequence[Any], *, detached: bool | Detached = False) -> Any:
        """Ask for many runs in one go, and get their results in the same order.

        A request is a pair of class and input. To say more of it, make it a dictionary of `run_agent_tool`'s arguments, with the class
        under `agent_class`; then its output is not typed.
        """
        return self._perdure.dispatch.run_many(requests, detached=detached)

    @overload
    def as_completed(
        self, requests: Sequence[tuple[AsyncChild[Input, Output], Input]]
    ) -> AsyncIterator[RunResult[Output]]: ...
    @overload
    def as_completed(
        self, requests: Sequence[tuple[Child[Input, Output], Input]]
    ) -> AsyncIterator[RunResult[Output]]: ...
    @overload
    def as_completed(self, requests: Sequence[Mapping[str, object]]) -> AsyncIterator[RunResult[Any]]: ...

    def as_completed(self, requests: Sequence[Any]) -> AsyncIterator[RunResult[Any]]:
        """Ask for many runs as `run_agent_tools` does, and iterate over their results in the order of completion."""
        return self._perdure.dispatch.as_completed(requests)

    def cancel_agent_tool(self, run_id: str, reason: str = "cancelled") -> Awaitable[Any]:
        """Cancel a run of this agent, and the runs that its child waits for. Durable on return. A run that has ended is left as it is."""
        return self._perdure.bridge(self._perdure.ask(Cancel(run_id, self._perdure.agent_id, str(reason))))

    def inspect_agent_tool_run(self, run_id: str) -> Pending[dict[str, Any] | Any]:
        """Return what is known of a run: status, outcome, progress, milestones. None means *not known yet*, never failed."""
        return self._perdure.bridge(self._perdure.dispatch.inspect(run_id))

    def has_agent_tool_run(self, agent_class: type[Any] | str, run_id: str) -> Pending[bool]:
        """Return whether this agent has a run of that class under that id which has been started."""
        return self._perdure.bridge(self._perdure.dispatch.has(agent_class, run_id))

    def list_agent_tool_runs(
        self, status: Sequence[str] | None = None, *, limit: int = 1000
    ) -> Pending[list[dict[str, Any]]]:
        """Return this agent's runs, oldest first."""
        statuses = None if status is None else list(status)
        return self._perdure.bridge(self._perdure.ask(ListRuns(self._perdure.agent_id, statuses, None, limit)))

    def clear_agent_tool_runs(
        self, *, status: Sequence[str] | None = None, older_than: float | datetime | None = None
    ) -> Pending[int]:
        """Delete retained runs and their children's storage. Live runs are cancelled first. Returns how many were cleared.

        Args:
            status: only runs with one of these statuses.
            older_than: only runs requested before this instant: milliseconds since the epoch, or an aware datetime.
        """
        before_ms = None if older_than is None else instant("older_than", older_than)
        return self._perdure.bridge(self._perdure.dispatch.clear(status, before_ms))

    def report_progress(self, fraction: float | None = None, **signal: Any) -> Awaitable[None]:
        """Report progress of the current run; see `RunContext.report_progress`. Outside of a run it does nothing and warns."""
        activity = ACTIVITY.get()
        if activity is None or activity.run is None:
            warnings.warn(
                "report_progress was called outside of a run; nothing was reported", RuntimeWarning, stacklevel=2
            )
            return self._perdure.done()
        return activity.run.report_progress(fraction, **signal)

    # durable jobs of its own

    @overload
    def run_fiber(self, name: str, fn: Callable[[FiberContext], Pending[T]]) -> Pending[T]: ...
    @overload
    def run_fiber(self, name: str, fn: Callable[[FiberContext], T]) -> Pending[T]: ...

    def run_fiber(self, name: str, fn: Callable[[FiberContext], Any]) -> Any:
        """Run a function now, and notice if the process dies meanwhile: `await self.run_fiber("import", self.work)`.

        Returns what `fn` returns, and keeps nothing of it. If the process dies, `on_fiber_recovered` is called with what was stashed last.
        The function itself cannot be entered again; the method of a `start_fiber` can.
        """
        check_id("name", name, self._perdure.limits.id_max)
        if not callable(fn):
            raise BadRequest("fn", f"{fn!r} cannot be called")
        if self._perdure.transaction is not None:
            raise AwaitedInsideHandler(
                "fn", "a transaction cannot wait for a fiber; start_fiber begins one when it commits"
            )
        return self._perdure.bridge(self._perdure.fibers.run(name, fn))

    def stash(self, data: object) -> bool:
        """Remember a value with the current fiber; see `FiberContext.stash`."""
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

        A known id or key starts nothing: the fiber is returned as it is, with `accepted` False. With other content it raises
        `ConflictingRequest`. Without id and key, an id is derived from where and what is asked.

        Args:
            wait_for_completion: return when the fiber has ended, whoever started it and whatever dies. Await it in async code.
            timeout_ms: the longest wait. After it the fiber is returned as it is, and goes on.
            options: see `FiberOptions`.
        """
        tenant, fibers = self._perdure, self._perdure.fibers
        if timeout_ms is not None:
            check_ms("timeout_ms", timeout_ms)
        if wait_for_completion and tenant.transaction is not None:
            raise AwaitedInsideHandler(
                "wait_for_completion",
                "nobody can wait inside a transaction or a handler: the fiber begins with its commit",
            )
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
        """Return a page of this agent's fibers, newest first, at most 500. `cursor` is the one of the page before."""
        return self._perdure.fibers.records.page(status, name, limit, cursor)

    def cancel_fiber(self, fiber_id: str, reason: str | None = None) -> bool:
        """End a fiber at once as `aborted`, durably. Returns whether it was open.

        Its async code is cancelled; sync code finds `fiber.is_cancelled`. Code that goes on cannot change the fiber any more, but what it
        does outside of the agent cannot be stopped (spec §11, 17).
        """
        check_id("fiber_id", fiber_id, self._perdure.limits.id_max)
        return self._perdure.fibers.cancel(fiber_id, None if reason is None else str(reason))

    def cancel_fiber_by_key(self, idempotency_key: str, reason: str | None = None) -> bool:
        """Cancel the fiber that was accepted under a key; see `cancel_fiber`."""
        check_id("idempotency_key", idempotency_key, self._perdure.limits.id_max)
        fiber_id = self._perdure.fibers.store.id_of_key(idempotency_key)
        return fiber_id is not None and self.cancel_fiber(fiber_id, reason)

    def resolve_fiber(self, fiber_id: str, result: FiberResult | str) -> bool:
        """Settle an interrupted fiber, or enter it again with `"retry"`. Returns False if it is not interrupted."""
        check_id("fiber_id", fiber_id, self._perdure.limits.id_max)
        return self._perdure.fibers.resolve(fiber_id, result)

    def delete_fibers(
        self,
        settled_before: float | datetime | None = None,
        status: str | Sequence[str] | None = None,
        limit: int = 100,
    ) -> int:
        """Delete records of settled fibers, those settled longest ago first. Returns how many. Their ids and keys become free.

        Args:
            settled_before: only fibers settled before this instant: milliseconds since the epoch, or an aware datetime.
            status: only fibers with these statuses. By default all but `interrupted`, which wait for a person.
        """
        return self._perdure.fibers.records.delete(settled_before, status, limit)

    # times

    def schedule(
        self,
        when: datetime | float | str,
        callback: str | Callable[..., object],
        payload: object = None,
        *,
        key: str | None = None,
        time_zone: str = "UTC",
        catch_up: str = "once",
        overlap: str = "skip",
        retry: Retries | dict[str, Any] | None = None,
        jitter_ms: float = 0,
        schedule_id: str | None = None,
    ) -> Schedule:
        """Call a callback at a time: an aware datetime, a number of seconds from now, or a cron text of five fields.

        It is never called early. A time in the past is due at once. What becomes of a cron schedule on days when clocks are changed, of
        ticks that were missed (`catch_up`) and of those that come while the callback is at work (`overlap`) is told in `policies.schedule`.

        With a `key` the same request finds the schedule that exists, whatever time it names; one with other content is a
        `ConflictingRequest`. The key is free again when the schedule is done. A cron schedule needs no key: the same text, zone, callback
        and payload are the same schedule, which takes over the other arguments of the latest request. So it may be asked for in `on_start`.

        Args:
            payload: plain data.
            time_zone: in which a cron text is read; a name of the tz database.
            retry: a `Retries`, or a dictionary of its fields.
            jitter_ms: each call is later than its time by up to so much, by the dice.
            schedule_id: instead of a key.

        Raises `BadRequest`, naming the field; then nothing was written.
        """
        tenant = self._perdure
        told: Asked = {
            "key": key, "retry": retry, "schedule_id": schedule_id, "time_zone": time_zone,
            "catch_up": catch_up, "overlap": overlap, "jitter_ms": jitter_ms,
        }  # fmt: skip
        schedules = tenant.schedules
        return shown_schedule(tenant, schedules.add(timed(tenant, when, callback, payload, tenant.now_ms(), told)))

    def schedule_every(
        self,
        interval_s: float,
        callback: str | Callable[..., object],
        payload: object = None,
        *,
        key: str | None = None,
        catch_up: str = "once",
        overlap: str = "skip",
        retry: Retries | dict[str, Any] | None = None,
        jitter_ms: float = 0,
        schedule_id: str | None = None,
    ) -> Schedule:
        """Call a callback every `interval_s` seconds, first after one interval. The times do not drift.

        The same interval, callback and payload are the same schedule, as for cron texts.
        """
        tenant = self._perdure
        told: Asked = {
            "key": key, "retry": retry, "schedule_id": schedule_id,
            "catch_up": catch_up, "overlap": overlap, "jitter_ms": jitter_ms,
        }  # fmt: skip
        schedules = tenant.schedules
        return shown_schedule(
            tenant, schedules.add(every(tenant, interval_s, callback, payload, tenant.now_ms(), told))
        )

    def queue(
        self,
        callback: str | Callable[..., object],
        payload: object = None,
        *,
        key: str | None = None,
        retry: Retries | dict[str, Any] | None = None,
    ) -> QueuedItem:
        """Call a callback when those queued before it are done: in order, one at a time.

        An item that fails or is parked does not hold up the others. With a `key` the same request finds the item that waits; one with
        other content is a `ConflictingRequest`.
        """
        tenant = self._perdure
        told: Asked = {"key": key, "retry": retry}
        line = tenant.callback_queue
        return shown_item(tenant, line.add(queued(tenant, callback, payload, tenant.now_ms(), told)))

    # relatives, and its own life

    def sub_agent(self, agent_class: type[A], name: str) -> A:
        """A typed handle of a sub-agent: an agent of its own, with storage of its own, that belongs to this one.

        It is recorded when it is first asked for, and starts with the first call. Errors of its methods are raised here. Raises
        `BadRequest` for a class that is no agent, and for a name that is not allowed.
        """
        return cast("A", self._perdure.family.child(agent_class, name))

    @property
    def parent(self) -> Any:
        """A handle of the agent whose sub-agent this is, or None."""
        return self._perdure.family.parent()

    @property
    def path(self) -> list[tuple[str, str]]:
        """The ancestors of this agent from the root on, then itself: pairs of type and name."""
        return path_of(self._perdure.agent_id)

    def destroy(self) -> Awaitable[None]:
        """Delete this agent and all its descendants. This life of the agent ends soon, perhaps before the call returns."""
        return self._perdure.bridge(self._perdure.family.destroy())

    def keep_alive(self) -> AbstractContextManager[None]:
        """A block during which the agent is not put to sleep for idleness. It does not outlive the process."""
        return self._perdure.kept_awake()

    # what is rarely done

    @property
    def fibers(self) -> FiberGroup:
        """Start many fibers in one commit; wait for one."""
        return FiberGroup(self._perdure)

    @property
    def schedules(self) -> ScheduleGroup:
        """Look at schedules; cancel, pause, resume and retry them."""
        return ScheduleGroup(self._perdure)

    @property
    def queued(self) -> QueueGroup:
        """Look at queued items; drop and retry them."""
        return QueueGroup(self._perdure)

    @property
    def sub_agents(self) -> SubAgentGroup:
        """Look at sub-agents; abort and delete them."""
        return SubAgentGroup(self._perdure)

    @property
    def storage(self) -> OwnStorage:
        """Copy the whole storage: snapshot, restore, fork."""
        return OwnStorage(self._perdure)
