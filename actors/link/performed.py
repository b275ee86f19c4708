"""Methods that are written once, for clients that block and for those whose callers await."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Awaits:
    """What is for async code: a call of its methods is awaited."""


class Suspends(Awaits):
    """The same, where a call is a coroutine."""


class Blocks:
    """What is for sync code: a call of its methods blocks."""


class Performed(Protocol[P, T_co]):
    # A method as a type checker sees it: its call is awaited in what awaits, and blocks in what blocks.

    @overload
    def __get__(self, client: Suspends, owner: type) -> Callable[P, Coroutine[Any, Any, T_co]]: ...
    @overload
    def __get__(self, client: Awaits, owner: type) -> Callable[P, Awaitable[T_co]]: ...
    @overload
    def __get__(self, client: Blocks, owner: type) -> Callable[P, T_co]: ...


def performed(method: Callable[Concatenate[Any, P], object], way: str) -> Performed[P, Any]:
    # What the method gives says what is to be done; the client does it, by its own method of the name `way`.
    @wraps(method)
    def called(self: Any, *args: P.args, **kwargs: P.kwargs) -> object:
        return getattr(self, way)(method(self, *args, **kwargs))

    return cast("Performed[P, Any]", called)


def settled(job: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Performed[P, T]:
    return performed(job, "_settle")
