"""What an author is told of runs, and what an author may ask of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NoReturn,
    NotRequired,
    TypeAlias,
    TypedDict,
    cast,
)

from perdure.actors.code.author_call import name_of_method
from perdure.ledger import BadRequest, PerdureError, Status, check_bool, check_id, check_ms, check_words
from perdure.policies import EndOf, Json, JsonObject, MilestoneOf

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # the checkers bring it; there `RunResult` alone is `RunResult[Any]`

    Output_co = TypeVar("Output_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    Output_co = TypeVar("Output_co", covariant=True)

Output = TypeVar("Output")
Default = TypeVar("Default")
T = TypeVar("T")

REFUSED_BY_LIMIT: Final = "max_concurrent_agent_tools"
"""The reason of a run that was never accepted; its id is free."""

UNREADABLE: Final = "unreadable-output"
"""The reason of a run that has completed with an output that the code of its class does not take any more."""

SAMPLE: Final = 10
"""Ids that a report of many runs tells."""

CONFLICTING: Final = "conflicting-request"
"""The reason of a run that a transaction asked for, and that was never accepted: its id is taken by other content."""


@dataclass(frozen=True, kw_only=True)
class AgentToolFailure:
    """Why a run has no result. `retryable` is true for an interruption, and for a run that was refused because of the parent's limit: there
    the same call can still succeed (seed 003).

    `trace` is the traceback of a child that raised, with the frames of its author's code.
    """

    status: Literal["error", "aborted", "interrupted"]
    error: str
    retryable: bool
    reason: str | None = None
    child_still_running: bool | None = None
    trace: str = ""
    ok: Literal[False] = False


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Which run it is. `delivery_id` is the idempotency key of the mail that a handler is given; empty elsewhere. `retries` counts how
    often a person had the run tried again after an end: the end that is told now is another one than those before."""

    run_id: str
    agent_type: str
    status: str = "starting"
    attempt: int = 1
    parent_tool_call_id: str | None = None
    display_order: int = 0
    display: dict[str, Any] | None = None
    input_preview: Any = None
    detached: bool = False
    started_at_ms: int = 0
    completed_at_ms: int | None = None
    delivery_id: str = ""
    source: str | None = None
    retries: int = 0

    @classmethod
    def from_ledger(cls, known: Mapping[str, object], delivery_id: str = "") -> RunInfo:
        """A run as the ledger describes it. What it says besides is for others."""
        fields = {key: value for key, value in known.items() if key in cls.__dataclass_fields__}
        return _filled(cls, {**_OF_INFO, **fields, "delivery_id": delivery_id})


@dataclass(frozen=True, kw_only=True)
class RunCompleted(Generic[Output_co]):
    """A run that completed. Its `output` has the type that the child's `run` is annotated with; `failure` is None."""

    run_id: str
    agent_type: str
    output: Output_co
    summary: str = ""
    status: Literal["completed"] = "completed"
    ok: ClassVar[Literal[True]] = True
    failure: ClassVar[Any] = None
    error: ClassVar[str] = ""
    trace: ClassVar[str] = ""
    reason: ClassVar[None] = None
    child_still_running: ClassVar[None] = None

    def output_or(self, default: object) -> Output_co:
        """The output. Of a run that did not complete it is the default."""
        return self.output


@dataclass(unsafe_hash=True)
class RunFailed(PerdureError):
    """A run that did not complete: the result of it, and the error that its `output` raises. `interrupted` is soft: a true end may still
    come. `error` and `aborted` are for ever.

    Raised, it has the traceback of a child that raised as a note.
    """

    run_id: str
    agent_type: str
    status: Literal["error", "aborted", "interrupted"]
    error: str = ""
    reason: str | None = None
    child_still_running: bool | None = None
    summary: str = ""
    trace: str = ""
    ok: ClassVar[Literal[False]] = False

    def __post_init__(self) -> None:
        """Be an exception whose fields are its arguments."""
        super().__init__(*(getattr(self, each.name) for each in fields(self)))

    def __str__(self) -> str:
        why = self.error or self.reason
        return f"run {self.run_id!r} of {self.agent_type} ended as {self.status}{f': {why}' if why else ''}"

    @property
    def output(self) -> NoReturn:
        """There is none: raises this failure. `output_or` gives something else instead."""
        failed = replace(self)  # one that is kept keeps no frames of its readers
        for note in getattr(self, "__notes__", ()):
            failed.add_note(note)
        if self.trace:
            failed.add_note(f"Where it was raised:\n{self.trace}")
        raise failed

    def output_or(self, default: Default) -> Default:
        """The default, for there is no output."""
        return default

    @property
    def failure(self) -> AgentToolFailure:
        """Why there is no output, and whether the same call can still succeed."""
        return AgentToolFailure(
            status=self.status,
            error=self.error or f"the run was {self.status}",
            retryable=self.status == "interrupted" or self.reason == REFUSED_BY_LIMIT,
            reason=self.reason,
            child_still_running=self.child_still_running,
            trace=self.trace,
        )


if TYPE_CHECKING:
    RunResult: TypeAlias = RunCompleted[Output_co] | RunFailed
else:

    class _Either(type):
        """A union of types that is a class too, since mypy lets code ask `isinstance(each, RunResult)`."""

        def __getitem__(cls, output: object) -> object:
            return RunCompleted[output] | RunFailed

        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, RunCompleted | RunFailed)

        def __subclasscheck__(cls, kind: type) -> bool:
            return kind is cls or issubclass(kind, RunCompleted | RunFailed)

    class RunResult(metaclass=_Either):
        """How a run ended, as far as is known: a `RunCompleted` or a `RunFailed`. `isinstance(value, RunResult)` tells one from other
        values; to pyright, and in `case` to mypy too, name the two classes themselves: `case RunCompleted() | RunFailed():`.

        `output` has the child's type. Of a run that did not complete it raises the `RunFailed`, and `output_or(default)` gives the default.
        `if result.ok:` narrows it to one of the two in mypy; `if result.status == "completed":` in pyright too. Elsewhere `failure` is
        `AgentToolFailure | Any`: checkers check what it would be, and leave it to the author whether it is there.
        """

        @classmethod
        def __get_pydantic_core_schema__(cls, _source: object, handler: Any) -> Any:
            """Checked as one of the two."""
            return handler.generate_schema(cls[Any])


# The end of a run as the ledger tells it. `output` is encoded; `reason` and `child_still_running` belong to an interruption.
class RunOutcome(TypedDict):
    status: str
    agent_type: NotRequired[str]
    output: NotRequired[bytes | None]
    summary: NotRequired[str]
    error: NotRequired[str]
    reason: NotRequired[str | None]
    child_still_running: NotRequired[bool | None]
    trace: NotRequired[str]


def statuses_of(given: object) -> list[str] | None:
    # None asks for all of them.
    return None if given is None else sorted(check_words("status", given, Status))


def _filled(kind: type[T], values: dict[str, object]) -> T:
    """An object of a frozen dataclass with values for all of its fields. Of many, each is made in a third of the time that `__init__`
    takes, which sets them one by one."""
    made = object.__new__(kind)
    vars(made).update(values)
    return made


_OF_INFO: Final = {each.name: each.default for each in fields(RunInfo) if each.default is not MISSING}


def run_result(
    *,
    run_id: str,
    agent_type: str,
    status: str,
    output: Output,
    summary: str = "",
    error: str = "",
    reason: str | None = None,
    child_still_running: bool | None = None,
    trace: str = "",
) -> RunResult[Output]:
    if status == "completed":
        values = {"run_id": run_id, "agent_type": agent_type, "output": output, "summary": summary, "status": status}
        return _filled(RunCompleted, values)
    return RunFailed(
        run_id=run_id,
        agent_type=agent_type,
        status=cast("Literal['error', 'aborted', 'interrupted']", status),
        error=error,
        reason=reason,
        child_still_running=child_still_running,
        summary=summary,
        trace=trace,
    )


@dataclass(kw_only=True)
class BulkReport:
    """What a pass has found and done.

    Attributes:
        verb: what was asked for.
        dry_run: whether runs were only counted.
        found: how many runs were chosen. With a dry run it is how many would be hit.
        statuses: how many of them had each status.
        hit: how many of them were cancelled, tried again or cleared.
        others: how many other runs that took along: what waited for a run that was cancelled, what the child of one that was cleared had
            requested.
        already: how many were so already: by others, or by this pass, if the supervisor died before it had answered.
        gone: how many were cleared meanwhile, or not chosen by the filter any more.
        refused: how many could not be done, by reason.
        sample: the ids of some that were chosen, the newest.
        next: where the rest begins if the pass was ended before its end; None if it is whole.
    """

    verb: str
    dry_run: bool = False
    found: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    hit: int = 0
    others: int = 0
    already: int = 0
    gone: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    sample: list[str] = field(default_factory=list)
    next: int | None = None

    def told(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)

    def take(self, other: dict[str, Any]) -> None:
        """Add what a later part of the same pass has found and done."""
        for name in ("found", "hit", "others", "already", "gone"):
            setattr(self, name, getattr(self, name) + other.get(name, 0))
        for name in ("statuses", "refused"):
            setattr(self, name, dict(Counter(getattr(self, name)) + Counter(other.get(name, {}))))
        self.sample = [*self.sample, *other.get("sample", ())][:SAMPLE]


@dataclass(frozen=True, kw_only=True)
class MilestoneInfo:
    """A milestone that a child reached: its name, its number in the run, and what the child said with it."""

    name: str
    sequence: int
    at_ms: int
    data: Any = None
    fraction: float | None = None
    message: str | None = None
    phase: str | None = None


@dataclass(frozen=True)
class RunHandle:
    """A detached run, accepted and durable. It can be awaited for symmetry, and is itself."""

    run_id: str
    agent_type: str
    status: str = "running"
    until_end: Callable[[], object] | None = field(default=None, repr=False, compare=False)
    sends: Callable[[str, str, object], object] | None = field(default=None, repr=False, compare=False)

    @property
    def end(self) -> EndOf:
        """That the run has completed, as a condition: `run_agent_tool(Write, input, after=handle.end)`."""
        return EndOf(self.run_id)

    def milestone(self, name: str) -> MilestoneOf:
        """That the run has reached a milestone, as a condition for `after`."""
        return MilestoneOf(self.run_id, check_id("milestone", name, sys.maxsize))

    def result(self) -> Any:
        """Wait for the end of what a runtime or a client has started: its `RunResult`, in async code an awaitable of it.

        Raises `BadRequest` for a handle that an agent got: a parent names handlers, or asks without `detached` and waits.
        """
        if self.until_end is None:
            raise BadRequest(
                "result", "a parent is told the end by `on_finish`; to wait for it, ask without `detached`"
            )
        return self.until_end()

    def send(self, event: str, value: object = None) -> Awaitable[None]:
        """Send an event to the run, which takes it by `run.wait_for(event)`: exactly once, in the order of the calls.

        With the open transaction, or else durable on return; async code awaits it. Raises `EventRefused` for a run that has ended.
        """
        if self.sends is None:
            raise BadRequest("run", "this handle was made by hand; `Runtime.send` takes the id of a run")
        return cast("Awaitable[None]", self.sends(self.run_id, event, value))

    def __await__(self) -> Generator[None, None, RunHandle]:
        """Give back the handle itself: `await` is right in async code, and harmless inside a transaction."""
        return self
        yield


class RunHandles(list[RunHandle]):
    """Detached runs, in the order of their requests. They can be awaited like one `RunHandle`."""

    def __await__(self) -> Generator[None, None, RunHandles]:
        """Give back the list itself."""
        return self
        yield


MAIL: Final = "mail"
"""The name of the events that are told to a run (`tell(run, message)`, `RunContext.receive`)."""


@dataclass(frozen=True, kw_only=True)
class Detached:
    """How a parent follows a run that it does not wait for. Handlers are methods of the parent, or their names, never closures: they must
    be found again after a death.

    Args:
        on_finish: method for the true end; also told of a give-up unless `on_give_up` is named, and of a run that a transaction asked for
            and that was refused, because its id is taken by other content (`result.reason` is `conflicting-request`).
        on_give_up: method for the give-up (`interrupted`).
        max_budget_ms: absolute budget from the request; 0 gives up at once, infinity never.
        no_progress_budget_ms: window of silence, reset by every signal once there was one; 0 and infinity are off.
        on_milestones: names of milestones to be told of, each once per run; or `{"names": [...], "mode": "react"}`, if a chat parent is to
            answer them and not only to tell them (`"narrate"`).
        on_milestone: method that is told of them.
        notify: whether (or from which source) a chat parent is told by a message.
    """

    on_finish: str | Callable[..., object] | None = None
    on_give_up: str | Callable[..., object] | None = None
    max_budget_ms: float | None = None
    no_progress_budget_ms: float | None = None
    on_milestones: Sequence[str] | Mapping[str, object] = field(default_factory=tuple)
    on_milestone: str | Callable[..., object] | None = None
    notify: bool | Mapping[str, object] = False

    def options(self, agent: object) -> JsonObject:
        """The options as plain data, checked against the parent; only what was given."""
        options: JsonObject = {"detached": True}
        for name in ("on_finish", "on_give_up", "on_milestone"):
            if getattr(self, name) is not None:
                options[name] = name_of_method(agent, name, getattr(self, name))
        for name in ("max_budget_ms", "no_progress_budget_ms"):
            value = getattr(self, name)
            if value is not None:
                options[name] = check_ms(name, value)
        if self.on_milestones:
            options["milestones"] = self._milestones()
        if self._is_notified():
            options["notify"] = True
            options["source"] = cast("Json", self.notify.get("source")) if isinstance(self.notify, Mapping) else None
        return options

    def _is_notified(self) -> bool:
        given = self.notify
        if not isinstance(given, Mapping):
            return check_bool("notify", given)
        if given.keys() - {"source"} or not isinstance(given.get("source"), str | None):
            raise BadRequest("notify", f"{given!r:.200} is not {{'source': 'a name'}}")
        return True

    def _milestones(self) -> JsonObject:
        given: Any = self.on_milestones
        if isinstance(given, Mapping) and (given.keys() - {"names", "mode"} or "names" not in given):
            raise BadRequest("on_milestones", f"{given!r:.200} is not {{'names': [...], 'mode': 'narrate' or 'react'}}")
        names, mode = (
            (given["names"], given.get("mode", "narrate")) if isinstance(given, Mapping) else (given, "narrate")
        )
        is_list = isinstance(names, Collection) and not isinstance(names, str | bytes | Mapping)
        if not is_list or not all(isinstance(name, str) and name for name in names):
            raise BadRequest("on_milestones", f"{names!r} is not a list of milestone names")
        if mode not in ("narrate", "react"):
            raise BadRequest("on_milestones", f"{mode!r} is not a mode; it is 'narrate' or 'react'")
        return {"names": list(names), "mode": mode}
