"""A runtime as async code sees it: what `async with Runtime(…) as runtime` gives. At run time it is the `Runtime` itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar, overload

from perdure.actors.agent.agent import Agent
from perdure.actors.events.observability import Callback
from perdure.actors.life.child_types import AsksNothing, AsyncAsksNothing, AsyncChild, Child
from perdure.actors.life.results import RunHandle, RunResult
from perdure.actors.link.messages import Fields, Plain
from perdure.actors.runtime.client import Client
from perdure.actors.runtime.event_stream import EventStream
from perdure.policies import Limits

A = TypeVar("A", bound=Agent)
Input = TypeVar("Input")
Output = TypeVar("Output")


class AsyncRuntime(Protocol):
    """The methods of `Runtime`, whose calls give awaitables. See there for what they do."""

    data: Path
    limits: Limits

    @property
    def client(self) -> Client:
        """The client underneath."""

    def agent(self, agent_class: type[A], name: str, of: object = None) -> A:
        """A typed handle of an agent. Nothing is started by it; a call of an exposed method wakes the agent."""

    @overload
    def run(
        self, agent_class: type[AsyncAsksNothing[Output]], input: None = None, *, run_id: str | None = None
    ) -> Awaitable[RunResult[Output]]: ...
    @overload
    def run(
        self, agent_class: type[AsksNothing[Output]], input: None = None, *, run_id: str | None = None
    ) -> Awaitable[RunResult[Output]]: ...
    @overload
    def run(
        self, agent_class: AsyncChild[Input, Output], input: Input, *, run_id: str | None = None
    ) -> Awaitable[RunResult[Output]]: ...
    @overload
    def run(
        self, agent_class: Child[Input, Output], input: Input, *, run_id: str | None = None
    ) -> Awaitable[RunResult[Output]]: ...
    @overload
    def start(
        self, agent_class: type[AsksNothing[object]], input: None = None, *, run_id: str | None = None
    ) -> Awaitable[RunHandle]: ...
    @overload
    def start(
        self, agent_class: Child[Input, object], input: Input, *, run_id: str | None = None
    ) -> Awaitable[RunHandle]: ...

    def ask(self, name: str, *args: Plain) -> Awaitable[Plain]:
        """Ask the supervisor: `ps`, `show`, `explain`, `list`, `frames`, `audit`, `limits`."""

    def ps(self) -> Awaitable[Fields]:
        """Counts, hosts, and the runs that are live."""

    def audit(self) -> Awaitable[Fields]:
        """The audit equation, parked mail, and what a boot found."""

    def inspect(self, run_id: str) -> Awaitable[Fields | None]:
        """What is known of a run; None means not known yet."""

    def explain(self, run_id: str) -> Awaitable[list[str]]:
        """In sentences: where a run is, why, and what comes next."""

    def cancel(self, run_id: str, reason: str = "cancelled by an operator") -> Awaitable[Plain]:
        """Cancel any run, and what its child waits for."""

    def retry(self, mail_id: str) -> Awaitable[Plain]:
        """Try a parked mail again."""

    def list(
        self, *, parent: str | None = None, status: Sequence[str] | None = None, limit: int = 1000
    ) -> Awaitable[Sequence[Fields]]:
        """Runs, oldest first."""

    def clear(
        self, *, status: Sequence[str] | None = None, older_than: float | datetime | None = None
    ) -> Awaitable[int]:
        """Clear retained runs of any parent; live ones are cancelled first. Returns how many."""

    def events(self, run_id: str, after: int = -1) -> EventStream:
        """The events of a run after a number, for `async for`."""

    def subscribe(self, channel: str, callback: Callback) -> Callable[[], None]:
        """Hear of what happens on a channel in the whole runtime, from now on."""
