"""A handle: stands for an agent wherever it is, so that its exposed methods can be called as if it were here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, cast, overload

from perdure.actors.life.class_options import check_asked
from perdure.actors.life.results import MAIL, RunHandle
from perdure.actors.link.caller import Address
from perdure.ledger import BadRequest

P = ParamSpec("P")

Reach = Callable[[Address, str, tuple[object, ...], dict[str, object]], object]
"""Makes a call, or tells something; what it returns is what the caller gets, be it an answer or an awaitable."""


class Method:
    """An exposed method of an agent elsewhere: `handle.add(5)` calls it, at most once, and `tell(handle.add, 5)` has it called exactly
    once."""

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle, self._name = handle, name

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._handle._call(self._to(), self._name, args, kwargs)  # noqa: SLF001 - the two are one thing

    def tell(self, *args: object, **kwargs: object) -> object:
        return self._handle._tell(self._to(), self._name, args, kwargs)  # noqa: SLF001 - the two are one thing

    def _to(self) -> Address:
        to = self._handle._to  # noqa: SLF001 - the two are one thing
        check_asked(to.agent_class)
        return to


class Handle:
    """What `agent(MyAgent, "name")` gives. Nothing is started by it; a call wakes the agent."""

    __slots__ = ("__weakref__", "_call", "_tell", "_to")

    def __init__(self, to: Address, call: Reach, tell: Reach) -> None:
        self._to, self._call, self._tell = to, call, tell

    def __getattr__(self, method: str) -> Method:
        """An exposed method, ready to be called."""
        if method.startswith("__"):
            raise AttributeError(method)
        return Method(self, method)

    def __repr__(self) -> str:
        return f"<handle of {self._to.agent_id}>"


@overload
def tell(method: RunHandle, message: object, /) -> Awaitable[None]: ...
@overload
def tell(method: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> Awaitable[None]: ...


def tell(method: Any, *args: Any, **kwargs: Any) -> Awaitable[None]:
    """Have an exposed method of another agent called exactly once, some time soon, in a transaction of that agent.

        tell(handle.add, 5)

    A run that was begun detached is told a message: `tell(run, message)`, with the handle of the run, which takes it by `run.receive()`.

    Nothing is answered. Inside a transaction or a handler it is told when that commits, and not at all if it rolls back; elsewhere it is
    durable on return, and async code awaits it. A method that raises is tried again, and parked in the end (`perdure audit` lists it).
    Raises `BadRequest` if it is no method of a handle, or if the arguments do not fit.
    """
    if isinstance(method, RunHandle):
        if len(args) != 1 or kwargs:
            raise BadRequest("message", "a run is told one message, of plain data: tell(run, message)")
        return method.send(MAIL, args[0])
    if not isinstance(method, Method):
        words = "tell(handle.method, …), or tell(run, message) with the handle of a run"
        raise BadRequest("method", f"{method!r:.200} is neither an exposed method of a handle nor a run: {words}")
    return cast("Awaitable[None]", method.tell(*args, **kwargs))


def address_of(handle: object) -> Address | None:
    return handle._to if isinstance(handle, Handle) else None  # noqa: SLF001 - as above
