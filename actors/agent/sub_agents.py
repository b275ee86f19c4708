"""What an author can do with an agent's relatives."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TypeVar, cast

from perdure.actors.host.tenant import Tenant
from perdure.actors.life.family import SubAgentInfo
from perdure.ledger import BadRequest, path_of

A = TypeVar("A")


class HasSubAgents:
    """The part of `Agent` that is about sub-agents, and about the agent's own life."""

    _perdure: Tenant

    def sub_agent(self, agent_class: type[A], name: str) -> A:
        """A typed handle of a sub-agent: an agent of its own, with storage of its own, that belongs to this one.

        It is put on record when it is first asked for, and begins with the first call. Exposed methods are called as over any handle;
        what they raise is raised here as the error that it is.
        """
        return cast("A", self._perdure.family.child(_checked(agent_class), name))

    def list_sub_agents(self, agent_class: type[Any] | str | None = None) -> list[SubAgentInfo]:
        """The sub-agents on record, in the order of their creation; optionally of one class, or of the name of one."""
        return self._perdure.family.children(agent_class)

    def has_sub_agent(self, agent_class: type[Any] | str, name: str) -> bool:
        """Whether that sub-agent is on record."""
        return any(each.name == name for each in self._perdure.family.children(agent_class))

    def abort_sub_agent(self, agent_class: type[Any], name: str, reason: str = "aborted") -> Any:
        """End the present lives of a sub-agent and of all that descends from it: who waits for a call gets `AgentAborted`.

        Durable on return. Storage stays, and the next call, mail or alarm begins another life.
        """
        return self._perdure.bridge(self._perdure.family.abort(_checked(agent_class), name, reason))

    def delete_sub_agent(self, agent_class: type[Any], name: str) -> None:
        """Delete a sub-agent and all that descends from it: storages, runs, alarms and mail. Harmless if it does not exist.

        Durable on return, or with the transaction in which it is asked for. Whoever asks for the name again gets a new sub-agent.
        """
        self._perdure.family.delete(_checked(agent_class), name)

    @property
    def parent(self) -> Any:
        """A handle of the agent to which this one belongs, or None."""
        return self._perdure.family.parent()

    @property
    def path(self) -> list[tuple[str, str]]:
        """The way from the root of the family to this agent: pairs of type and name, the agent itself last."""
        return path_of(self._perdure.agent_id)

    def destroy(self) -> Any:
        """Delete this agent and all that descends from it. The life that asks for it ends soon, and need not expect an answer."""
        return self._perdure.bridge(self._perdure.family.destroy())

    def keep_alive(self) -> AbstractContextManager[None]:
        """While this is open the agent is not put to sleep for idleness. A death ends it, like everything else in memory."""
        return self._perdure.kept_awake()


def _checked(agent_class: Any) -> Any:
    if not isinstance(agent_class, type) or not issubclass(agent_class, HasSubAgents):
        raise BadRequest("agent_class", f"{agent_class!r} is no agent class")
    return agent_class
