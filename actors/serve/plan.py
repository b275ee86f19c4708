"""What the processes of one gateway are started with, and the application that they make of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from inspect import getmembers, isclass
from typing import Any, Final, NamedTuple

from perdure.actors.agent.agent import Agent
from perdure.actors.serve.app import Gateway
from perdure.ledger import BadRequest

FIELD: Final = "target"
APP: Final = "app"


class ServePlan(NamedTuple):
    """What `perdure serve` was asked for. It goes to other processes, so there is no secret in it.

    Args:
        targets: where the agents are: `module`, `module:Class`, `module:agents` or `module:app`.
        place: the directory that modules are imported from, beside what is installed.
        host: the address that is listened on.
        port: its port.
        allows_kill: whether processes may be killed through the gateway.
    """

    targets: tuple[str, ...]
    place: str = ""
    host: str = "127.0.0.1"
    port: int = 8787
    allows_kill: bool = False

    def application(self, **options: Any) -> Gateway:
        """The application. Raises `BadRequest` for a target without agents."""
        if self.place and self.place not in sys.path:
            sys.path.insert(0, self.place)
        if self.allows_kill:
            options["allows_kill"] = True
        apps: list[Gateway] = []
        agents: list[type[Agent]] = []
        for target in self.targets:
            found = _found(target)
            if isinstance(found, Gateway):
                apps.append(found)
            else:
                agents += _agents(target, found)
        if len(apps) > 1:
            raise BadRequest(FIELD, "two of the targets are a Gateway; serve each by a command of its own")
        return apps[0].again(agents, **options) if apps else Gateway(agents, **options)


def _found(target: str) -> object:
    """What a target names: an object, or a module's `app`, or else the module."""
    name, _, attribute = target.partition(":")
    if not name or name.endswith(".py") or "/" in name:
        raise BadRequest(FIELD, f"{target!r} is not module[:name], such as my_agents or my_agents:app")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as problem:
        if problem.name != name and not name.startswith(f"{problem.name}."):
            raise
        raise BadRequest(FIELD, f"there is no module {name!r} here, nor is one installed") from None
    if not attribute:
        app = getattr(module, APP, None)
        return app if isinstance(app, Gateway) else module
    if not hasattr(module, attribute):
        raise BadRequest(FIELD, f"the module {name} has no {attribute!r}")
    return getattr(module, attribute)


def _agents(target: str, found: object) -> list[type[Agent]]:
    """The classes of agents that this is: one, several, or the public ones that a module defines."""
    if isclass(found) and issubclass(found, Agent):
        return [found]
    if isinstance(found, Iterable) and not isinstance(found, str):
        several = list(found)
        if several and all(isclass(each) and issubclass(each, Agent) for each in several):
            return several
    name = target.partition(":")[0]
    if ":" not in target:
        own = [each for _, each in getmembers(found, isclass) if each.__module__ == name and issubclass(each, Agent)]
        if public := [each for each in own if not each.__name__.startswith("_")]:
            return public
        raise BadRequest(FIELD, f"the module {name} defines no agents; name what holds them, as in {name}:agents")
    raise BadRequest(FIELD, f"{target} is no Gateway, no class of agents and no list of these, but {found!r:.80}")
