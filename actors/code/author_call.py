"""Calls of an author's code, and what it raises: a value, and words that can be stored, sent and printed, whatever it is.

A simulated kill, a cancellation that was requested and the close of a coroutine pass through.
"""

from __future__ import annotations

import asyncio
import inspect
import resource
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from pathlib import Path
from traceback import StackSummary, TracebackException
from typing import Any, Final, TypeVar, cast

from perdure.actors.tasks import NotAnException, as_failure, failure_or_itself
from perdure.ledger import BadRequest, PerdureError

_OURS: Final = str(Path(__file__).parents[1])  # `actors`: an author's code did not fail where it was only called

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., object])


async def tried(job: Awaitable[T]) -> tuple[T | None, Exception | None]:
    """What the author's code returned or raised. What is no `Exception` counts as one (`tasks.as_failure`)."""
    try:
        return await job, None
    except BaseException as raised:
        problem = as_failure(raised, was_awaited=True)
        if problem is None:
            raise
        return None, problem


async def in_time(job: Awaitable[T], most_ms: float, late: Exception) -> T:
    """What a job comes to. After so long it is cancelled, and `late` is raised, from its cancellation if that says more; a `TimeoutError`
    of its own is passed on."""
    bound = asyncio.timeout(most_ms / 1000)
    try:
        async with bound:  # `wait_for` may lose a cancellation (3.11)
            return await job
    except TimeoutError as problem:
        if not bound.expired():
            raise
        cancelled = problem.__cause__
        raise late from (cancelled.with_traceback(None) if cancelled is not None and cancelled.args else None)


async def result_of(make: Callable[[], T | Awaitable[T]]) -> T:
    value = make()
    return cast("T", await value) if inspect.isawaitable(value) else value


def staying(job: Callable[[], T]) -> T:
    """Do sync code. What it raises that is no `Exception` is raised as one."""
    try:
        return job()
    except BaseException as raised:
        raise failure_or_itself(raised)  # noqa: B904 - what stands for it has it as its cause


def tried_now(job: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return job(), None
    except BaseException as raised:
        problem = as_failure(raised)
        if problem is None:
            raise
        return None, problem


# ---------------------------------------------------------------- errors in words


WORDS_MAX: Final = 4_000
"""Characters of an error's words, where there is no other bound."""
PARTS_MAX: Final = 5
"""The causes that are named of one error, and the errors that are named of a group."""
TRACED_MAX: Final = 20
"""The errors behind one another, or in groups, that get a traceback."""

# Like `own`: a metaclass may make anything of `__name__`.
_name_of: Final[Callable[[type], str]] = vars(type)["__name__"].__get__


def own(problem: BaseException, name: str) -> Any:
    # an author's class may make anything of the name
    return vars(BaseException)[name].__get__(problem)


def set_cause(problem: BaseException, cause: BaseException) -> None:
    vars(BaseException)["__cause__"].__set__(problem, cause)


def behind(problem: BaseException) -> BaseException | None:
    cause: BaseException | None = own(problem, "__cause__")
    if cause is None and not own(problem, "__suppress_context__"):
        cause = own(problem, "__context__")
    return cause


def raised_by(problem: BaseException) -> BaseException:
    return problem.raised if isinstance(problem, NotAnException) else problem


def kind_of(problem: BaseException) -> str:
    return _name_of(type(problem))


def members_of(problem: BaseException) -> Sequence[BaseException]:
    held = vars(BaseExceptionGroup)["exceptions"].__get__(problem) if isinstance(problem, BaseExceptionGroup) else ()
    return cast("Sequence[BaseException]", held)


def text_of(value: object, chars_max: int = WORDS_MAX) -> str:
    r"""The text of a value that may be anything, fit to be stored, sent and printed: it is cut, halves of surrogate pairs and NULs are
    escaped (`\udce9`), and if its `__str__` raises, that is what it says."""
    text, problem = tried_now(lambda: str(value))
    if text is None or problem is not None:
        why = "" if problem is None else f": {kind_of(raised_by(problem))}"
        text = f"({_name_of(type(value))}, whose text cannot be had{why})"
    return _fit(str.__str__(text), chars_max)


def sendable(text: str) -> str:
    # no other process could decode halves of surrogate pairs
    if type(text) is str and text.isascii():
        return text
    return str.encode(text, errors="backslashreplace").decode()


def _fit(text: str, chars_max: int) -> str:
    text = _cut(text, chars_max)
    return _cut(sendable(text).replace("\0", "\\x00"), chars_max)


def _cut(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def in_words(problem: BaseException, chars_max: int = WORDS_MAX) -> str:
    """An author's exception as a text for an error field, with what it was raised from, and what a group holds. Errors of ours say that in
    their own words."""
    return _cut(_in_words(raised_by(problem), PARTS_MAX), chars_max)


def _in_words(problem: BaseException, parts_max: int) -> str:
    words = words_of(problem, parts_max)
    text = f"{kind_of(problem)}: {words}" if words else kind_of(problem)
    cause: BaseException | None = own(problem, "__cause__")
    is_whole = cause is None or isinstance(problem, PerdureError) or not parts_max
    if is_whole or isinstance(cause, SystemExit | asyncio.CancelledError):
        return text
    return f"{text} (caused by {_in_words(raised_by(cast('BaseException', cause)), parts_max - 1)})"


def words_of(problem: BaseException, parts_max: int = PARTS_MAX) -> str:
    words = text_of(problem)
    if isinstance(problem, MemoryError) and not words:
        return _out_of_memory()
    members = members_of(problem) if parts_max and not isinstance(problem, PerdureError) else ()
    parts = [_in_words(raised_by(each), parts_max - 1) for each in members[:PARTS_MAX]]
    more = [f"and {len(members) - PARTS_MAX} more"] if len(members) > PARTS_MAX else []
    return _cut(f"{words}: {'; '.join(parts + more)}", WORDS_MAX) if parts else words


def _out_of_memory() -> str:
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    own_bound = (
        "it has no limit of its own (RLIMIT_AS)" if most == resource.RLIM_INFINITY else f"RLIMIT_AS is {most >> 20} MB"
    )
    return f"the process got no more memory; {own_bound}"


def traced(problem: BaseException, chars_max: int) -> str:
    """Its traceback, without our own frames if the author has any. One that is too long loses its middle. An error that cannot be taken
    apart is told in words alone."""
    raised = raised_by(problem)
    whole, _ = tried_now(lambda: "".join(_unfolded(raised, set()).format()))
    text = in_words(raised) if whole is None else without_middle(whole.rstrip(), chars_max)
    return _fit(text, max(chars_max, len(text)))


def _unfolded(problem: BaseException, seen: set[int]) -> TracebackException:
    # Python's own way (`TracebackException`) recurses to the end of a chain of errors, which may be far.
    seen.add(id(problem))
    trace = TracebackException(type(problem), problem, own(problem, "__traceback__"), compact=True, _seen=set())
    theirs = [frame for frame in trace.stack if not frame.filename.startswith(_OURS)]
    trace.stack = StackSummary.from_list(theirs) if theirs else trace.stack
    cause: BaseException | None = own(problem, "__cause__")
    trace.__cause__ = None if cause is None or _is_enough(cause, seen) else _unfolded(raised_by(cause), seen)
    context = None if cause is not None else behind(problem)
    trace.__context__ = None if context is None or _is_enough(context, seen) else _unfolded(raised_by(context), seen)
    members = members_of(problem)
    trace.exceptions = [_unfolded(each, seen) for each in members if not _is_enough(each, seen)] or None
    return trace


def _is_enough(problem: BaseException, seen: set[int]) -> bool:
    return id(problem) in seen or len(seen) >= TRACED_MAX


SUMMARY_CHARS_MAX: Final = 16_000
"""Of a text that is its own summary."""


def without_middle(text: str, chars_max: int) -> str:
    half = chars_max // 2
    return text if len(text) <= chars_max else f"{text[:half]}\n  …\n{text[-half:]}"


VERB: Final = "__perdure_verb__"
"""Marks a method that gives an awaitable on the loop, and the answer on a thread beside it."""


def is_async(method: Callable[..., object]) -> bool:
    # Only methods are remembered: what else is called may hold a whole agent.
    function = getattr(method, "__func__", None)
    return inspect.iscoroutinefunction(method) if function is None else _is_async(function)


@lru_cache(maxsize=4096)
def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or getattr(function, VERB, False)


def hook(method: Method) -> Method:
    # What an author overrides. `overrides` tells whether one did, which saves a call.
    method.__perdure_hook__ = method  # type: ignore[attr-defined]
    return method


def is_hook(agent_class: type, name: str) -> bool:
    return hasattr(getattr(agent_class, name, None), "__perdure_hook__")


def name_of_method(agent: object, field: str, given: object) -> str:
    """The name of a method of the agent, which may be given as the method itself. Raises `BadRequest`, naming the field: another function
    could not be found again after a death."""
    name = getattr(given, "__name__", None) if getattr(given, "__self__", None) is agent else given
    if not isinstance(name, str):
        raise BadRequest(field, f"{given!r:.200} is neither the name of a method nor a method of this agent")
    if name.startswith("__") or not callable(getattr(type(agent), name, None)):
        raise BadRequest(field, f"{type(agent).__name__} has no method {name!r}")
    return name


def overrides(agent_class: type, name: str) -> bool:
    method = getattr(agent_class, name)
    return getattr(method, "__perdure_hook__", None) is not method  # what wraps the hook has its mark too
