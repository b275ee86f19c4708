"""The ways that calls and mail take: what `ledger.addressing` decides about each, put into the message before anything is done for it."""

from __future__ import annotations

from collections.abc import Callable

from perdure.actors.link.caller import THROUGH
from perdure.actors.link.messages import Call
from perdure.ledger import AgentUnreachable, Standalone, Tell, View, pack, route


class CallRouter:
    """The ways in one supervisor life. `has_storage` tells whether an agent has ever written anything."""

    def __init__(self, view: View, has_storage: Callable[[str], bool]) -> None:
        self._view, self._has_storage = view, has_storage

    def of_call(self, asked: Call) -> Call:
        """The call as it goes to the first agent on its way. Raises `AgentUnreachable`."""
        agent, way = route(self._view.runs, asked.agent_id, asked.sender, Standalone(asked.standalone), self._exists)
        if not way:
            return asked._replace(agent_id=agent)
        hop = pack([[list(step) for step in way], asked.method, asked.body, asked.repeatable])
        return asked._replace(agent_id=agent, method=THROUGH, body=hop, home=None)

    def of_mail(self, asked: Tell) -> Tell:
        """The mail for the agent that it means. Raises `AgentUnreachable`."""
        agent, way = route(self._view.runs, asked.recipient, asked.sender, Standalone(asked.standalone), self._exists)
        if way:
            raise AgentUnreachable(asked.recipient, "only its relatives may tell it something; call it instead")
        return asked._replace(recipient=agent)

    def _exists(self, agent: str) -> bool:
        return agent in self._view.agents or agent in self._view.asleep or self._has_storage(agent)
