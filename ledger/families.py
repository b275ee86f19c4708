"""Families: the sub-agents that the view knows, by each agent that they descend from."""

from __future__ import annotations

from collections.abc import Iterator


class Families:
    """An index over the addresses of agents, so that a family is found without a look at anybody else."""

    def __init__(self) -> None:
        self._below: dict[str, dict[str, None]] = {}

    def add(self, agent: str) -> None:
        for ancestor in ancestors(agent):
            self._below.setdefault(ancestor, {})[agent] = None

    def remove(self, agent: str) -> None:
        for ancestor in ancestors(agent):
            below = self._below.get(ancestor)
            if below is not None and below.pop(agent, 0) is None and not below:
                del self._below[ancestor]

    def of(self, agent: str) -> list[str]:
        return [agent, *self._below.get(agent, ())]


def ancestors(agent: str) -> Iterator[str]:
    """Every address below which this one is (`ids.is_within`), the nearest first. An agent that is nobody's sub-agent has none."""
    above, sign, _ = agent.rpartition(">")
    while sign:
        yield above
        above, sign, _ = above.rpartition(">")
