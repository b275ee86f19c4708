"""An author's hooks: checked when they are given, and called so that what goes wrong in one is told as the author's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from inspect import signature
from typing import Final, TypeVar, cast

from perdure.actors.code.author_call import result_of, traced, tried
from perdure.ledger import BadRequest, PerdureError

T = TypeVar("T")

TRACE_CHARS_MAX: Final = 8_000


class HookFailed(Exception):
    # Not the asker's mistake, and none of the gateway's: the log has these words, and the client is told neither.

    def __init__(self, field: str, hook: object, what: str) -> None:
        super().__init__(f"the hook `{field}` ({_name_of(hook)}) {what}")


def check_hook(field: str, hook: object, *takes: str) -> None:
    """Raise `BadRequest` for a hook that cannot be called with what it will be given, which is named."""
    if hook is None:
        return
    wanted = f"it is called as {field}({', '.join(takes)}), sync or async"
    if not callable(hook):
        raise BadRequest(field, f"{hook!r:.80} cannot be called; {wanted}")
    try:
        taken = signature(hook)
    except ValueError:  # some that are written in C have none
        return
    try:
        taken.bind(*takes)
    except TypeError as problem:
        raise BadRequest(field, f"{_name_of(hook)}{taken!s:.200} does not fit ({problem}); {wanted}") from None


async def call_hook(field: str, hook: Callable[..., T | Awaitable[T]], *given: object) -> T:
    """What a hook says. What it refuses by an error of ours is passed on; `HookFailed` stands for any other error."""
    said, problem = await tried(result_of(partial(hook, *given)))
    if problem is None:
        return cast("T", said)
    # One that says `BadRequest` has made something wrong itself: a principal, for example.
    if isinstance(problem, PerdureError) and not isinstance(problem, BadRequest):
        raise problem
    raise HookFailed(field, hook, f"raised\n{traced(problem, TRACE_CHARS_MAX)}") from problem


def _name_of(hook: object) -> str:
    while isinstance(hook, partial):
        hook = hook.func
    name = getattr(hook, "__qualname__", None) or type(hook).__qualname__
    return f"{getattr(hook, '__module__', None) or type(hook).__module__}.{name}"
