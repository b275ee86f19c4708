"""A handle: stands for an agent wherever it is, so that its exposed methods can be called as if it were here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.calling import Address

Reach = Callable[[Address, str, tuple[Any, ...], dict[str, Any]], Any]
"""Makes a call, or tells something; what it returns is what the caller gets, be it an answer or an awaitable."""


class Method:
    """An exposed method of an agent elsewhere: `handle.add(5)` calls it, at most once, and `handle.add.tell(5)` has it called exactly
    once, some time soon, in a transaction; of that nothing is answered, but it is durable on return."""

    def __init__(self, handle: Handle, name: str) -> None:
        self._handle, self._name = handle, name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it, and get its answer."""
        return self._handle._call(self._handle._to, self._name, args, kwargs)  # noqa: SLF001 - the two are one thing

    def tell(self, *args: Any, **kwargs: Any) -> Any:
        """Have it called exactly once. Inside a transaction or a handler it is told when that commits."""
        return self._handle._tell(self._handle._to, self._name, args, kwargs)  # noqa: SLF001 - the two are one thing


class Handle:
    """What `agent(MyAgent, "name")` gives. Nothing is started by it; a call wakes the agent."""

    def __init__(self, to: Address, call: Reach, tell: Reach) -> None:
        self._to, self._call, self._tell = to, call, tell

    def __getattr__(self, method: str) -> Method:
        """An exposed method, ready to be called."""
        if method.startswith("__"):
            raise AttributeError(method)
        return Method(self, method)

    def __repr__(self) -> str:
        return f"<handle of {self._to.agent_id}>"


def address_of(handle: object) -> str:
    """The address of the agent for which a handle stands, or an empty string if it is none."""
    return vars(handle)["_to"].agent_id if isinstance(handle, Handle) else ""
