"""Who may address which agent. The one place that decides it, for every call and every mail, before anything is put on record.

The child of a run belongs to the agent that requested the run, as a sub-agent belongs to its parent: it is reached by the same way,
`parent>run_id@type`, and by its own address, `run_id@type`. Both mean the same agent.

    who asks          for                                             route
    a relative        anyone                                          directly
    somebody outside  an agent that belongs to nobody                 directly
                      the child of a run that a client requested      directly
                      a sub-agent, or the child of an agent's run     through its ancestors, and each `on_before_sub_agent` is asked
                      a new agent of a class that has a `run` and     refused: a guessed id brings no child to life
                      does not stand alone (`Agent.stands_alone`)
                      the child of a run that was cleared             refused
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from perdure.ledger.errors import AgentUnreachable
from perdure.ledger.ids import agent_id, parent_of, path_of, sub_agent_id
from perdure.ledger.run import Run, run_of

Runs = Mapping[str, Run]


# Whether agents of a class stand alone: always, because it has no `run`; also, beside children of runs; or never.
class Standalone(StrEnum):
    ALWAYS = ""
    ALSO = "also"
    NEVER = "never"


# Where a message goes: to this agent, and from there by this way, step by step. Without a way, the agent is the recipient.
class Route(NamedTuple):
    agent_id: str
    way: list[tuple[str, str]]


def route(runs: Runs, to: str, sender: str, standalone: Standalone, exists: Callable[[str], bool]) -> Route:
    """The route to an agent. Raises `AgentUnreachable`.

    Args:
        runs: those that `named_on_the_way` has named, as far as they exist.
        to: the address as the sender knows it.
        sender: the relative that asks, or nothing for somebody outside.
        standalone: that of the class; from outside, that of the first class in the address.
        exists: whether an agent is awake, or has a storage.
    """
    agent = _own_address(runs, to)
    if sender:
        return Route(agent, [])
    root = agent_id(*path_of(to)[0])
    if standalone is Standalone.NEVER and run_of(runs, root) is None and not exists(root):
        raise AgentUnreachable(root, "there is no such run, and its class does not stand alone (`stands_alone = True`)")
    way: list[tuple[str, str]] = []
    while above := _owner_of(runs, agent):
        way.insert(0, path_of(agent)[-1])
        agent = above
    return Route(agent, way)


def _own_address(runs: Runs, agent: str) -> str:
    """The address under which an agent lives: that of a run's child does not begin with its parent's."""
    if not parent_of(agent):
        return agent
    parent = _own_address(runs, parent_of(agent))
    agent_type, name = path_of(agent)[-1]
    run = runs.get(name)
    if run is not None and run.attempt and (run.parent, run.agent_type) == (parent, agent_type):
        return run.child
    return sub_agent_id(parent, agent_type, name)


def named_on_the_way(runs: Runs, agent: str) -> Iterator[str]:
    """The ids that may be those of runs, on the way to an agent; of known runs their parents' too."""
    for _, name in path_of(agent):
        yield name
        run = runs.get(name)
        if run is not None and run.parent:
            yield from named_on_the_way(runs, run.parent)


def is_cleared(runs: Runs, agent: str) -> bool:
    run = run_of(runs, agent)
    return run is not None and run.cleared


def _owner_of(runs: Runs, agent: str) -> str:
    if is_cleared(runs, agent):
        raise AgentUnreachable(agent, "its run was cleared")
    run = run_of(runs, agent)
    return parent_of(agent) or ("" if run is None else run.parent)
