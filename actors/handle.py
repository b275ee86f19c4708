"""A handle: stands for an agent wherever it is, so that its exposed methods can be called as if it were here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.agent import Agent

Call = Callable[[type[Agent], str, str, tuple[Any, ...], dict[str, Any]], Any]


class Handle:
    """What `agent(MyAgent, "name")` gives. Nothing is started by it; a call wakes the agent.

    Args:
        call: makes a call of an agent's method; what it returns is what the caller gets, be it an answer or an awaitable.
    """

    def __init__(self, agent_class: type[Agent], name: str, call: Call) -> None:
        self._agent_class, self._name, self._call = agent_class, name, call

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """An exposed method, ready to be called."""
        if method.startswith("__"):
            raise AttributeError(method)
        agent_class, name, make = self._agent_class, self._name, self._call

        def call(*args: Any, **kwargs: Any) -> Any:
            return make(agent_class, name, method, args, kwargs)

        return call

    def __repr__(self) -> str:
        return f"<handle of {self._name}@{self._agent_class.__name__}>"
