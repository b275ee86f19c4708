"""`self.sub_agents`: what is rarely done with an agent's sub-agents. `Agent.sub_agent` gives their handles."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from perdure.actors.host.tenant import Tenant
from perdure.actors.life.family import SubAgentInfo


class SubAgentGroup:
    """The sub-agents of one agent."""

    def __init__(self, tenant: Tenant) -> None:
        self._perdure = tenant

    def has(self, agent_class: type[Any] | str, name: str) -> bool:
        """Return whether that sub-agent is known."""
        return any(each.name == name for each in self._perdure.family.children(agent_class))

    def list(self, agent_class: type[Any] | str | None = None) -> Sequence[SubAgentInfo]:
        """Return the known sub-agents, in the order of their creation; optionally of one class, given itself or by its type name."""
        return self._perdure.family.children(agent_class)

    def abort(self, agent_class: type[Any], name: str, reason: str = "aborted") -> Awaitable[None]:
        """End the lives of a sub-agent and its descendants. Pending calls raise `AgentAborted`.

        Durable on return. Storage stays; the next call, mail or alarm wakes the agent again.
        """
        return self._perdure.bridge(self._perdure.family.abort(agent_class, name, reason))

    def delete(self, agent_class: type[Any], name: str) -> None:
        """Delete a sub-agent and its descendants: storages, runs, alarms and mail. Does nothing if it does not exist.

        Durable on return, or with the open transaction. The same name then means a new sub-agent.
        """
        self._perdure.family.delete(agent_class, name)
