"""Agents whose signatures are written in every way that Python has."""

# ruff: noqa: ANN001, ANN201, ARG003 - some have no annotations on purpose

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel

from perdure.actors import Agent, RunContext, exposed

if TYPE_CHECKING:
    import decimal
    from collections.abc import Callable

    from perdure.actors import FiberContext
    from perdure.actors import RunContext as Context
    from perdure.policies import Nowhere  # type: ignore[attr-defined]

    Amount = decimal.Decimal


T = TypeVar("T")
U = TypeVar("U")
Small = TypeVar("Small", bound=int)


class Topic(BaseModel):
    name: str


class ForCheckers(Agent):
    """Names that only type checkers see, and one of the class's own body."""

    stands_alone = True

    class Line(BaseModel):
        words: list[str]

    async def run(self, input: Line, context: Context | None = None) -> Amount:
        assert isinstance(input, self.Line)
        assert context is not None
        return len(input.words)  # type: ignore[return-value]

    @exposed
    async def price(self, of: Amount) -> str:
        return type(of).__name__


class Base(Agent, Generic[T]):
    def run(self, input: list[T], run: RunContext) -> dict[str, T]:
        return {str(run.attempt): input[0]}


class Middle(Base[U], Generic[U]):
    """One generation more."""


class Heir(Middle[Topic]):
    """What a list of topics is for."""


class Quoted(Base["Topic"]):
    """The same, named before it could be."""


class Bounded(Base[Small]):  # type: ignore[type-var]
    """Nobody says which integers."""


class Annotated(Agent):
    async def run(self, input: int, run: RunContext) -> int:
        return input * 2


class Overriding(Annotated):
    async def run(self, number, context):  # type: ignore[no-untyped-def]
        return number * 2 + (context.attempt - 1)


def unwrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    def inner(*args: Any, **kwargs: Any) -> Any:
        return method(*args, **kwargs)

    return inner


def wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    async def inner(self: Any, *args: Any) -> Any:
        return await method(self, *args)

    return inner


class Decorated(Agent):
    @unwrapped
    @unwrapped
    async def run(self, input: int, run: RunContext) -> int:
        return input * 2


class Wrapped(Agent):
    @wrapped
    async def run(self, input: int, run: RunContext) -> int:
        return input * 2


class WithDefault(Agent):
    def run(self, input: str = "x", *, times: int = 2, run: RunContext) -> str:
        return input * times


class Marker:
    """Is no plain data."""


class WithMarker(Agent):
    def run(self, input: Any = Marker) -> bool:
        return input is Marker


class ContextOnly(Agent):
    def run(self, context: RunContext) -> int:
        return context.attempt


class ByName(Agent):
    def run(self, *, run, input: int = 3):  # type: ignore[no-untyped-def]
        return input + run.attempt


class Unasked(Agent):
    def run(self, input, run=None):  # type: ignore[no-untyped-def]
        return [input, run]


class Static(Agent):
    @staticmethod
    def run(input: int, run: RunContext) -> int:
        return input + run.attempt


class OfClass(Agent):
    @classmethod
    async def run(cls, input: int, /, run: RunContext) -> str:
        return f"{cls.__name__} {input}"


class Partial(Agent):
    def _scaled(self, input: int, run: RunContext, factor: int) -> int:
        return input * factor

    run = functools.partialmethod(_scaled, factor=7)


class Errant(Agent):
    """The annotations of one method are unknown; the other is checked all the same."""

    stands_alone = True

    @exposed
    async def lost(self, thing: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821


class ErrantRun(Agent):
    async def run(self, input: Missing) -> None: ...  # type: ignore[name-defined] # noqa: F821


class ErrantResult(Agent):
    async def run(self, input: int) -> list[Nowhere]: ...


class Odd(Agent):
    async def run(self, input: list[Marker]) -> None: ...


class Crew(Agent):
    stands_alone = True
    done: list[Any] = []  # noqa: RUF012 - what the tests look at

    async def typed(self, fiber: FiberContext, input: Topic) -> None:
        self.done.append(input)

    async def turned(self, input: Topic, fiber: FiberContext) -> None:
        self.done.append((input, fiber.attempt))

    async def with_default(self, fiber, input: str = "x"):  # type: ignore[no-untyped-def]
        self.done.append(input)

    async def wrong(self, number: int) -> None: ...

    async def many(self, fiber: FiberContext, input: int, more: int) -> None: ...

    async def bit_by_bit(self, fiber: FiberContext, input: int) -> Any:
        yield input

    def ticks(self, payload: Any, occurrence: Any) -> Any:
        yield payload

    @exposed
    async def start(self, method: str, input: Any = None) -> str:
        return str((await self.start_fiber("job", method, input, wait_for_completion=True)).status)

    @exposed
    async def plan(self, method: str) -> None:
        self.schedule(0, method)
