"""Calls of an author's code. Its exceptions become values. Kills and cancellations derive from `BaseException` and pass through."""

from __future__ import annotations

import asyncio
import inspect
import resource
from collections.abc import Awaitable, Callable
from functools import lru_cache
from pathlib import Path
from traceback import StackSummary, TracebackException
from typing import Final, TypeVar, cast

from perdure.ledger import BadRequest, PerdureError

_OURS: Final = str(Path(__file__).parents[1])  # `actors`: who only calls an author's code is not where it failed

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., object])


async def tried(job: Awaitable[T]) -> tuple[T | None, Exception | None]:
    """What the author's code returned or raised.

    A cancellation that was not requested of this task counts as raised: the code waited for another task that was cancelled.
    """
    try:
        return await job, None
    except asyncio.CancelledError as stray:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        problem = RuntimeError("a task that the code waited for was cancelled")
        problem.__cause__ = stray
        return None, problem
    except SystemExit as leaving:
        return None, _left(leaving)
    except Exception as problem:
        return None, problem


async def result_of(make: Callable[[], T | Awaitable[T]]) -> T:
    """The result of an author's code, awaited if it has to be. Its errors are raised."""
    value = make()
    return cast("T", await value) if inspect.isawaitable(value) else value


def _left(leaving: SystemExit) -> RuntimeError:
    """In a host it would end the event loop of all who live there."""
    problem = RuntimeError(f"the code called sys.exit({leaving.code!r}); an agent ends by returning or raising")
    problem.__cause__ = leaving
    return problem


def staying(job: Callable[[], T]) -> T:
    """Do sync code on a thread. Raises `RuntimeError` if it calls `sys.exit`."""
    try:
        return job()
    except SystemExit as leaving:
        raise _left(leaving) from leaving


def tried_now(job: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """The same for sync code."""
    try:
        return staying(job), None
    except Exception as problem:
        return None, problem


def in_words(problem: Exception, causes_max: int = 5) -> str:
    """An author's exception as a text for an error field, with what it was raised from. Errors of ours say that in their own words."""
    words = str(problem)
    if isinstance(problem, MemoryError) and not words:
        words = _out_of_memory()
    told = f"{type(problem).__name__}: {words}" if words else type(problem).__name__
    cause = problem.__cause__
    if not isinstance(cause, Exception) or isinstance(problem, PerdureError) or not causes_max:
        return told
    return f"{told} (caused by {in_words(cause, causes_max - 1)})"


def _out_of_memory() -> str:
    """What bounds the memory of this process."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    own = (
        "it has no limit of its own (RLIMIT_AS)" if most == resource.RLIM_INFINITY else f"RLIMIT_AS is {most >> 20} MB"
    )
    return f"the process got no more memory; {own}"


def traced(problem: BaseException, chars_max: int) -> str:
    """Its traceback, without our own frames if the author has any. One that is too long loses its middle."""
    whole = TracebackException.from_exception(problem, compact=True)
    behind: TracebackException | None = whole
    while behind is not None:
        theirs = [frame for frame in behind.stack if not frame.filename.startswith(_OURS)]
        behind.stack = StackSummary.from_list(theirs) if theirs else behind.stack
        behind = behind.__cause__ or behind.__context__
    return without_middle("".join(whole.format()).rstrip(), chars_max)


def without_middle(text: str, chars_max: int) -> str:
    """The text; one that is too long loses its middle."""
    half = chars_max // 2
    return text if len(text) <= chars_max else f"{text[:half]}\n  …\n{text[-half:]}"


VERB: Final = "__perdure_verb__"
"""Marks a method that gives an awaitable on the loop, and the answer on a thread beside it."""


def is_async(method: Callable[..., object]) -> bool:
    """Whether calling the method gives a coroutine. Only methods are remembered: what else is called may hold a whole agent."""
    function = getattr(method, "__func__", None)
    return inspect.iscoroutinefunction(method) if function is None else _is_async(function)


@lru_cache(maxsize=4096)
def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or hasattr(function, VERB)


def hook(method: Method) -> Method:
    """Mark a method for authors to override. `overrides` tells whether one did, which saves a call."""
    method.__perdure_hook__ = method  # type: ignore[attr-defined]
    return method


_FORMER_NAMES: Final = {  # ours, as directories that an earlier version wrote have them
    "deliver_reply": "_perdure_deliver_reply",
    "on_detached_narrate": "_perdure_narrate",
    "on_detached_notify": "_perdure_notify",
    "on_detached_react": "_perdure_react",
    "recover_reply": "_perdure_recover_reply",
}


def method_named(agent: object, name: str) -> object:
    """The method of a stored name, or None. An author's method comes before one of ours that once had the name."""
    return getattr(agent, name, None) or getattr(agent, _FORMER_NAMES.get(name, name), None)


def name_of_method(agent: object, field: str, given: object) -> str:
    """The name of a method of the agent, which may be given as the method itself. Raises `BadRequest`, naming the field: another function
    could not be found again after a death."""
    name = getattr(given, "__name__", None) if getattr(given, "__self__", None) is agent else given
    if not isinstance(name, str):
        raise BadRequest(field, f"{given!r:.200} is neither the name of a method nor a method of this agent")
    if name.startswith("__") or not callable(getattr(type(agent), name, None)):
        raise BadRequest(field, f"{type(agent).__name__} has no method {name!r}")
    return name


def check_takes(agent: object, field: str, name: str, *named: str) -> None:
    """Raises `BadRequest` if a method cannot be called with these arguments, by position: it would fail each time."""
    method = getattr(agent, name)
    try:
        inspect.signature(method).bind(*named)
    except TypeError as problem:
        wanted = f"{type(agent).__name__}.{name}() is called with ({', '.join(named)})"
        raise BadRequest(field, f"{wanted}, which it does not take: {problem}") from None
    except ValueError:  # a callable without a signature
        return


def overrides(agent_class: type, name: str) -> bool:
    """Whether an author's class has its own version of a hook."""
    method = getattr(agent_class, name)
    return getattr(method, "__perdure_hook__", None) is not method  # what wraps the hook has its mark too
