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
        """Whether that sub-agent is on record."""
        return any(each.name == name for each in self._perdure.family.children(agent_class))

    def list(self, agent_class: type[Any] | str | None = None) -> Sequence[SubAgentInfo]:
        """The sub-agents on record, in the order of their creation; optionally of one class, or of the name of one."""
        return self._perdure.family.children(agent_class)

    def abort(self, agent_class: type[Any], name: str, reason: str = "aborted") -> Awaitable[None]:
        """End the present lives of a sub-agent and of all that descends from it: who waits for a call gets `AgentAborted`.

        Durable on return. Storage stays, and the next call, mail or alarm begins another life.
        """
        return self._perdure.bridge(self._perdure.family.abort(agent_class, name, reason))

    def delete(self, agent_class: type[Any], name: str) -> None:
        """Delete a sub-agent and all that descends from it: storages, runs, alarms and mail. Harmless if it does not exist.

        Durable on return, or with the transaction in which it is asked for. Whoever asks for the name again gets a new sub-agent.
        """
        self._perdure.family.delete(agent_class, name)
