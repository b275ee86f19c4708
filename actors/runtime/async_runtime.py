"""The type of `async with Runtime(…) as runtime`. At run time it is the `Runtime` itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Protocol, TypeVar, overload

from perdure.actors.agent.agent import Agent
from perdure.actors.event_stream import EventStream
from perdure.actors.events.observability import Callback
from perdure.actors.life.child_types import AsksNothing, AsyncAsksNothing, AsyncChild, Child
from perdure.actors.life.results import RunHandle, RunResult
from perdure.actors.link.messages import Fields, Plain
from perdure.actors.runtime.client import Client
from perdure.policies import Limits

A = TypeVar("A", bound=Agent)
Input = TypeVar("Input")
Output = TypeVar("Output")


class AsyncRuntime(Protocol):
    """The methods of `Runtime`, described there. Here their calls give awaitables."""

    data: Path
    limits: Limits

    @property
    def client(self) -> Client: ...
    def agent(self, agent_class: type[A], name: str, of: object = None) -> A: ...

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

    def ask(self, name: str, *args: Plain) -> Awaitable[Plain]: ...
    def ps(self) -> Awaitable[Fields]: ...
    def audit(self) -> Awaitable[Fields]: ...
    def inspect(self, run_id: str) -> Awaitable[Fields | None]: ...
    def explain(self, run_id: str) -> Awaitable[list[str]]: ...
    def cancel(self, run_id: str, reason: str = "cancelled by an operator") -> Awaitable[Plain]: ...
    def retry(self, mail_id: str) -> Awaitable[Plain]: ...
    def list(
        self, *, parent: str | None = None, status: Sequence[str] | None = None, limit: int = 1000
    ) -> Awaitable[Sequence[Fields]]: ...
    def clear(
        self, *, status: Sequence[str] | None = None, older_than: float | datetime | None = None
    ) -> Awaitable[int]: ...
    def events(self, run_id: str, after: int = -1) -> EventStream[Fields]: ...
    def subscribe(self, channel: str, callback: Callback) -> Callable[[], None]: ...
