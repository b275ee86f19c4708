"""`@exposed`, its types, and the casts where types cannot tell.

At run time an exposed method stays a function. To a type checker it is an `Exposed`, because a call over a handle has another type than a
call in the agent:

    self.count(texts)       in the agent: what `count` gives, so a coroutine if it is async
    handle.count(texts)     over a handle of `Runtime`, in sync code: the answer, whether `count` is async or not

A handle for sync code has the type `type[Librarian]`, which tells the two apart. Handles for async code (`AsyncRuntime`, `Agent.sub_agent`)
are typed as the agent itself, which is exact for async methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator
from functools import partial, wraps
from inspect import iscoroutine, iscoroutinefunction
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast, overload

from perdure.actors.code.author_call import VERB
from perdure.actors.link.direct_calls import BEGINS, WATCHES
from perdure.actors.tasks import Pending, Unanswered
from perdure.ledger import BadRequest, check_bool

P = ParamSpec("P")
R = TypeVar("R")
Given_co = TypeVar("Given_co", covariant=True)
T_co = TypeVar("T_co", covariant=True)
Answer_co = TypeVar("Answer_co", covariant=True)
M = TypeVar("M")


if TYPE_CHECKING:

    class Exposed(Generic[P, Given_co, Answer_co]):
        """An exposed method: its parameters, its result in the agent, and its answer over a handle."""

        @overload
        def __get__(self, agent: None, agent_class: type) -> Callable[P, Answer_co]: ...
        @overload
        def __get__(self, agent: object, agent_class: type) -> Callable[P, Given_co]: ...

        def __get__(self, agent: object, agent_class: type) -> Any: ...


class Events(Protocol[T_co]):
    """What a handle gives to be iterated over: by `for` in sync code, which blocks meanwhile, or by `async for`."""

    def __iter__(self) -> Iterator[T_co]: ...
    def __aiter__(self) -> AsyncIterator[T_co]: ...


class Generated(Iterator[T_co], Protocol[T_co]):
    """A sync generator to a type checker: an iterator in its agent, and followed by `async for` over a handle for async code."""

    def __aiter__(self) -> AsyncIterator[T_co]: ...


class Marking(Protocol):
    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, P], AsyncIterator[R]], /
    ) -> Exposed[P, AsyncIterator[R], Events[R]]: ...
    @overload
    def __call__(
        self, method: Callable[Concatenate[Any, P], Iterator[R]], /
    ) -> Exposed[P, Generated[R], Events[R]]: ...
    @overload
    def __call__(self, method: Callable[Concatenate[Any, P], Pending[R]], /) -> Exposed[P, Pending[R], R]: ...
    @overload
    def __call__(self, method: Callable[Concatenate[Any, P], R], /) -> Exposed[P, R, R]: ...


@overload
def exposed(
    method: Callable[Concatenate[Any, P], AsyncIterator[R]],
) -> Exposed[P, AsyncIterator[R], Events[R]]: ...
@overload
def exposed(method: Callable[Concatenate[Any, P], Iterator[R]]) -> Exposed[P, Generated[R], Events[R]]: ...
@overload
def exposed(method: Callable[Concatenate[Any, P], Pending[R]]) -> Exposed[P, Pending[R], R]: ...
@overload
def exposed(method: Callable[Concatenate[Any, P], R]) -> Exposed[P, R, R]: ...
@overload
def exposed(*, repeatable: bool = False, concurrent: bool = False) -> Marking: ...


def exposed(method: object = None, *, repeatable: bool = False, concurrent: bool = False) -> Any:
    """Let a method be called over a handle.

    A call is made at most once. With `repeatable=True` it is repeated if the agent's host died during it.

    Of an agent's sync exposed methods, handlers and methods that are tools one runs at a time, beside its `run`; while one waits for a run
    or another agent, the next may begin. A method that is `concurrent=True`, because it waits for something else, takes no turn.

    A `@classmethod` or a `@staticmethod` is marked above that. Type checkers hide from a decorator that a method is static, so to them the
    first parameter of one is missing in calls: where they read along, write a `@classmethod`.
    """
    check_bool("repeatable", repeatable)
    check_bool("concurrent", concurrent)

    def mark(marked: object) -> Any:
        function: Any = marked.__func__ if isinstance(marked, staticmethod | classmethod) else marked
        if not callable(function):
            raise BadRequest("method", f"{marked!r:.200} is no method, and only methods can be exposed")
        function.__perdure_exposed__ = {"repeatable": repeatable, "concurrent": concurrent}
        return marked

    return mark if method is None else mark(method)


def verb(method: M) -> M:
    """Make a coroutine method of ours, or a generator, one of an agent's verbs: it works on the loop of the agent's host, wherever it is
    called (`Life.bridge`). Awaited in async code, it has no truth before; in sync code it blocks and gives the value."""
    function: Any = method

    @wraps(function)
    def called(self: Any, *args: object, **kwargs: object) -> object:
        job = partial(function, self, *args, **kwargs)
        if not is_called:
            return self._perdure.bridge_stream(job)
        answer = self._perdure.bridge(job())
        return Unanswered(answer) if iscoroutine(answer) else answer

    is_called = iscoroutinefunction(function)
    setattr(called, VERB, is_called)
    return cast("M", called)


def steering(method: Callable[Concatenate[Any, P], Pending[R]]) -> Exposed[P, Pending[R], R]:
    return exposed(repeatable=True)(verb(method))


def watching(method: M) -> M:
    """Expose a method that changes nothing. A caller that knows the host of the agent asks it there (`actors.link.direct_calls`)."""
    return _asked_at_host(method, WATCHES)


def begun_at_host(method: M) -> M:
    """Expose a repeatable method that may begin something, in the same way."""
    return _asked_at_host(method, BEGINS)


def _asked_at_host(method: M, mark: str) -> M:
    marked: Any = exposed(repeatable=True)(cast("Any", method))
    marked.__perdure_at_host__ = mark
    return method


# ---------------------------------------------------------------- casts
# Between the two ways of calling, which type checkers cannot tell apart.


@overload
def blocking(call: Awaitable[R]) -> R: ...
@overload
def blocking(call: AsyncIterator[R]) -> Iterable[R]: ...


def blocking(call: Any) -> Any:
    """In sync code: give the result of a call that is typed as awaitable its own type. The call has already blocked. What an
    async generator gives is iterated over by `for`.

        notes = blocking(self.run_agent_tool(Researcher, topic)).output

    Raises `BadRequest` in async code, where the call must be awaited.
    """
    if isinstance(call, Coroutine):
        call.close()  # nobody will await it
    if isinstance(call, Coroutine) or asyncio.isfuture(call):
        raise BadRequest("call", "this is async code, where the call is to be awaited")
    return call


@overload
def awaiting(answer: Generated[R]) -> AsyncIterator[R]: ...  # type: ignore[overload-overlap] # the first that fits is meant
@overload
def awaiting(answer: R) -> Awaitable[R]: ...


def awaiting(answer: Any) -> Any:
    """In async code: give the answer of a sync method over a handle the type of an awaitable, which it is there; that of a sync generator
    the type of what `async for` follows.

    total = await awaiting(self.sub_agent(Account, "alice").book(1))
    """
    return answer
