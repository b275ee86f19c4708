"""What type checkers know of a child: the type of its input and of its output, from the annotations of its `run`.

An author writes `run` in one of eight ways: sync or async, and with no parameter, with the input, the `RunContext`, or both.
Each way is a protocol here. Where a parameter of type `Child[Input, Output]` or `AsyncChild[Input, Output]` takes the class, and one of
type `Input` takes the input, a wrong input is an error of the call, and the result is a `RunResult[Output]`. An async `run` fits the
protocols of a sync one too, with a coroutine as its output; therefore overloads name the async protocols first.

A class that is known only at run time is `type[Any]`: nothing is checked then, and the output is `Any`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, TypeAlias, TypedDict, TypeVar

from perdure.actors.life.conditions import After
from perdure.actors.life.run_context import RunContext
from perdure.actors.tasks import Pending

Input_contra = TypeVar("Input_contra", contravariant=True)
Output_co = TypeVar("Output_co", covariant=True)
Input = TypeVar("Input")
Output = TypeVar("Output")


class AsksNothing(Protocol[Output_co]):
    """`def run(self) -> Output`."""

    def run(self, /) -> Output_co: ...


class AsyncAsksNothing(Protocol[Output_co]):
    """`async def run(self) -> Output`."""

    def run(self, /) -> Pending[Output_co]: ...


class AsksContext(Protocol[Output_co]):
    """`def run(self, run: RunContext) -> Output`."""

    def run(self, run: RunContext, /) -> Output_co: ...


class AsyncAsksContext(Protocol[Output_co]):
    """`async def run(self, run: RunContext) -> Output`."""

    def run(self, run: RunContext, /) -> Pending[Output_co]: ...


class TakesInput(Protocol[Input_contra, Output_co]):
    """`def run(self, input: Input) -> Output`."""

    def run(self, input: Input_contra, /) -> Output_co: ...


class AsyncTakesInput(Protocol[Input_contra, Output_co]):
    """`async def run(self, input: Input) -> Output`."""

    def run(self, input: Input_contra, /) -> Pending[Output_co]: ...


class TakesContext(Protocol[Input_contra, Output_co]):
    """`def run(self, input: Input, run: RunContext) -> Output`."""

    def run(self, input: Input_contra, run: RunContext, /) -> Output_co: ...


class AsyncTakesContext(Protocol[Input_contra, Output_co]):
    """`async def run(self, input: Input, run: RunContext) -> Output`."""

    def run(self, input: Input_contra, run: RunContext, /) -> Pending[Output_co]: ...


Inputless: TypeAlias = type[AsksNothing[Output]] | type[AsksContext[Output]]
AsyncInputless: TypeAlias = type[AsyncAsksNothing[Output]] | type[AsyncAsksContext[Output]]
Child: TypeAlias = type[TakesInput[Input, Output]] | type[TakesContext[Input, Output]]
AsyncChild: TypeAlias = type[AsyncTakesInput[Input, Output]] | type[AsyncTakesContext[Input, Output]]


class ClientOptions(TypedDict, total=False):
    run_id: str | None
    after: After | None
    losers: Literal["leave", "cancel"]


class RunOptions(TypedDict, total=False):
    """What may be said of a run beside its input.

    Attributes:
        run_id: names the run. The same id with the same content is the same run; without one it is derived from where and what is asked.
        parent_tool_call_id: the model's tool call that the run belongs to.
        display_order: its place among the runs of that call when they are shown.
        display: anything for the view of the run: `name`, `icon`, ….
        input_preview: shown in place of the first 500 characters of the input.
        on_limit: what happens above `max_concurrent_agent_tools`: `queue` or `reject`.
        on_cancel: what becomes of the run when the code that waits for it is cancelled, by `asyncio.timeout` for example: by default
            it is cancelled too (`cancel`); `leave` lets it go on. What `on_start` or a recovery hook waits for always goes on.
        after: what must have come true before the run begins, of runs that the same agent or client has asked for: `handle.end` (it has
            completed), `handle.milestone(name)`, the id of a run, which stands for its end, and `all_of`, `any_of`, `n_of` of them. Nothing
            waits for it but the ledger. The run is given the results as `run.joined`. If it can never come true any more, the run ends as
            `error` at once.
        losers: what becomes of those of these runs of which nothing was needed, when `after` is decided: `leave` or `cancel`.
    """

    run_id: str | None
    parent_tool_call_id: str | None
    display_order: int
    display: Mapping[str, object] | None
    input_preview: object
    on_limit: str
    on_cancel: str
    after: After | None
    losers: Literal["leave", "cancel"]
