"""What happens to the agents of a host, on its way to those who observe: emitted in the host's process, passed on by the supervisor."""

from __future__ import annotations

from collections.abc import Callable, Container

from perdure.actors.events.observability import Channel, Event, subscribe
from perdure.actors.link.messages import Happened
from perdure.ledger import agent_id, pack


class Relay:
    """Passes on the events of its own agents, as long as the supervisor says that somebody observes.

    Several hosts of a simulation live in one process, so what belongs to another host's agent is left to that one.

    Args:
        agents: the addresses of those who live here.
        say: tells the supervisor, from whichever thread.
    """

    def __init__(self, agents: Container[str], say: Callable[[Happened], None]) -> None:
        self._agents, self._say = agents, say
        self._leave: list[Callable[[], None]] = []

    def want(self, wanted: bool) -> None:
        """Begin or end to pass things on."""
        for leave in self._leave:
            leave()
        self._leave = [subscribe(channel, self._teller(channel)) for channel in Channel] if wanted else []

    def _teller(self, channel: Channel) -> Callable[[Event], None]:
        def tell(event: Event) -> None:
            agent = agent_id(event.agent_type, event.agent_name)
            if agent in self._agents:
                pack(event.payload)  # what is no plain data is refused here, where it is logged, and not on its way
                self._say(Happened(str(channel), event.type, agent, dict(event.payload), event.at_ms))

        return tell
