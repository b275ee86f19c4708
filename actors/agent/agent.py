"""The class that an author subclasses. It costs one base class and no configuration.

    class Importer(Agent):
        async def run(self, input: ImportInput, run: RunContext) -> ImportResult: ...

Everything that Perdure keeps on an author's object is under one attribute, `_perdure`; the class is the author's.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar, Unpack, overload

from perdure.actors.agent.fibers import RunsFibers
from perdure.actors.agent.schedules import KeepsSchedules
from perdure.actors.agent.sub_agents import HasSubAgents
from perdure.actors.code.author_call import hook
from perdure.actors.life.activity import ACTIVITY
from perdure.actors.life.child_types import AsksNothing, AsyncAsksNothing, AsyncChild, Child, RunOptions
from perdure.actors.life.results import Detached, RunHandle, RunHandles, RunInfo, RunResult

F = TypeVar("F", bound=Callable[..., Any])
Input = TypeVar("Input")
Output = TypeVar("Output")


class Agent(RunsFibers, KeepsSchedules, HasSubAgents):
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

    recalls_results: ClassVar[bool] = False  # whether `run`, entered again after its end, gives the same result at once

    @classmethod
    def prepare(cls) -> None:
        """Called on a thread of a process that may soon be given agents of this class: load what takes long. Never relied upon."""

    # what the agent is and has

    @property
    def name(self) -> str:
        """The agent's name; for the child of a run it is the run's id."""
        return self._perdure.name

    def sql(self, query: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run SQL on the agent's own storage: in the open transaction if there is one, else durable on return."""
        return self._perdure.storage.sql(query, parameters)

    def transaction(self) -> AbstractContextManager[Any]:
        """Everything inside takes effect together or not at all: SQL, `state`, and the detached runs that are asked for."""
        return self._perdure.outbox.transact()

    @property
    def state(self) -> Any:
        """A small durable mapping of plain data. Assign to change it; a value that was read is a copy."""
        return self._perdure.storage.state

    def snapshot(self, path: str | Path) -> None:
        """Write a consistent copy of the agent's storage to a file of its own."""
        self._perdure.storage.snapshot(Path(path))

    def restore(self, path: str | Path) -> None:
        """Take a snapshot as this agent's storage; only before anything was written to it."""
        self._perdure.restore(Path(path))

    def fork(self, name: str) -> None:
        """Give a new agent of this class a copy of this agent's storage; refused if that agent has one."""
        self._perdure.fork(name)

    # what an author overrides

    @hook
    async def on_start(self) -> None:
        """Called when the agent has come up, before any other work of this life."""

    @hook
    async def on_agent_tool_start(self, run: RunInfo) -> None:
        """Called before a run is asked for, once for each run. An exception refuses it, and nothing has happened.

        A run that a transaction or a handler asks for begins with its commit. So there the hook is mail: called when the run has been
        accepted, in a transaction, exactly once in effect. It cannot refuse any more; if it raises it is tried again like a handler.
        """

    @hook
    async def on_agent_tool_finish(self, run: RunInfo, result: RunResult[Any]) -> None:
        """Called once for every end of a run of this agent, in the transaction that consumes it, before a named handler."""

    @hook
    async def on_progress(self, run: RunInfo, progress: dict[str, Any]) -> None:
        """Called, at best effort, for progress and milestones of this agent's runs while it is awake."""

    async def on_before_sub_agent(self, agent_type: str, name: str) -> bool:
        """Whether somebody outside may reach a child of this agent: asked for every call that comes by way of it.

        By default a sub-agent on record, or the child of a run which began here (spec W-50). If it is allowed, a sub-agent that does
        not exist yet is made.
        """
        if self._perdure.family.has(agent_type, name):
            return True
        run = await self.inspect_agent_tool_run(name)
        return run is not None and run["agent_type"] == agent_type and run["attempt"] > 0

    @hook
    def validate_state(self, state: dict[str, Any]) -> None:
        """Called before a change of `state` with what it would become. An exception refuses the change: nothing is written."""

    @hook
    async def on_state_changed(self, state: dict[str, Any]) -> None:
        """Called, at best effort, after changes of `state` became durable, with what it is then; several changes may be told as one."""

    @hook
    async def on_error(self, error: Exception, doing: str) -> None:
        """Called, at best effort, when a hook or something in the background failed, where no caller, run or mail carries the error."""

    def woken(self) -> None:
        """Called by the runtime after `on_start` when the agent has a storage: what an earlier life left undone is taken up."""

    # agents as tools

    @overload
    def run_agent_tool(
        self,
        agent_class: type[AsyncAsksNothing[Output]],
        input: None = None,
        *,
        detached: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, RunResult[Output]]: ...

    @overload
    def run_agent_tool(
        self,
        agent_class: type[AsksNothing[Output]],
        input: None = None,
        *,
        detached: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, RunResult[Output]]: ...

    @overload
    def run_agent_tool(
        self,
        agent_class: AsyncChild[Input, Output],
        input: Input,
        *,
        detached: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, RunResult[Output]]: ...

    @overload
    def run_agent_tool(
        self,
        agent_class: Child[Input, Output],
        input: Input,
        *,
        detached: Literal[False] = False,
        **options: Unpack[RunOptions],
    ) -> Coroutine[Any, Any, RunResult[Output]]: ...

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
    ) -> Coroutine[Any, Any, list[RunResult[Output]]]: ...

    @overload
    def run_agent_tools(
        self, requests: Sequence[tuple[Child[Input, Output], Input]], *, detached: Literal[False] = False
    ) -> Coroutine[Any, Any, list[RunResult[Output]]]: ...

    @overload
    def run_agent_tools(
        self, requests: Sequence[Mapping[str, Any]], *, detached: Literal[False] = False
    ) -> Coroutine[Any, Any, list[RunResult[Any]]]: ...

    @overload
    def run_agent_tools(
        self, requests: Sequence[tuple[Child[Input, object], Input]], *, detached: Detached | Literal[True]
    ) -> RunHandles: ...

    @overload
    def run_agent_tools(
        self, requests: Sequence[Mapping[str, Any]], *, detached: Detached | Literal[True]
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
    def as_completed(self, requests: Sequence[Mapping[str, Any]]) -> AsyncIterator[RunResult[Any]]: ...

    def as_completed(self, requests: Sequence[Any]) -> AsyncIterator[RunResult[Any]]:
        """Ask for many runs as `run_agent_tools` does, and iterate over their results in the order of completion."""
        return self._perdure.dispatch.as_completed(requests)

    def cancel_agent_tool(self, run_id: str, reason: str = "cancelled") -> Any:
        """Cancel a run of this agent, and what its child waits for. Durable on return; a run that has ended stays as it is."""
        return self._perdure.bridge(self._perdure.ask("cancel", run_id, self._perdure.agent_id, str(reason)))

    def inspect_agent_tool_run(self, run_id: str) -> Any:
        """What is known of a run: status, outcome, progress, milestones. None means *not known yet*, never failed."""
        return self._perdure.bridge(self._perdure.dispatch.inspect(run_id))

    def has_agent_tool_run(self, agent_class: type[Agent] | str, run_id: str) -> Any:
        """Whether this agent has a run of that class under that id which was ever given a place."""
        return self._perdure.bridge(self._perdure.dispatch.has(agent_class, run_id))

    def list_agent_tool_runs(self, status: Sequence[str] | None = None, *, limit: int = 1000) -> Any:
        """This agent's runs, oldest first."""
        statuses = None if status is None else list(status)
        return self._perdure.bridge(self._perdure.ask("list", self._perdure.agent_id, statuses, None, limit))

    def clear_agent_tool_runs(self, *, status: Sequence[str] | None = None, older_than: int | None = None) -> Any:
        """Forget retained runs and their children's storage; live ones are cancelled first. Returns how many were cleared.

        Args:
            status: only runs with one of these statuses.
            older_than: only runs requested before this instant (milliseconds since the epoch).
        """
        return self._perdure.bridge(self._perdure.dispatch.clear(status, older_than))

    def report_progress(self, fraction: float | None = None, **signal: Any) -> Any:
        """Report progress of the run that the current code belongs to; outside of a run a no-op with a warning."""
        activity = ACTIVITY.get()
        if activity is None or activity.run is None:
            warnings.warn(
                "report_progress was called outside of a run; nothing was reported", RuntimeWarning, stacklevel=2
            )
            return self._perdure.done()
        return activity.run.report_progress(fraction, **signal)
