"""What the processes of one gateway are started with, and the application that they make of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from inspect import getmembers, isclass
from typing import Any, Final, NamedTuple

from perdure.actors.agent.agent import Agent
from perdure.actors.gateway.security import Principal, Security, by_digest, check_exposed, check_proxies
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
        token_digest: of the token that everybody must have (`token_digest`); empty for none.
        certfile: a certificate, with which TLS is spoken.
        keyfile: its key, if that is in another file.
        forwarded_allow_ips: the proxies whose word on where a request comes from is taken, separated by commas.
        hosts: further host names by which it is asked.
        origins: pages elsewhere that may ask.
        backups: where backups are made on demand; empty for nowhere.
    """

    targets: tuple[str, ...]
    place: str = ""
    host: str = "127.0.0.1"
    port: int = 8787
    allows_kill: bool = False
    token_digest: str = ""
    certfile: str = ""
    keyfile: str = ""
    forwarded_allow_ips: str = ""
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    backups: str = ""

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.certfile else 'http'}://{host}:{self.port}"

    def application(self, **options: Any) -> Gateway:
        """The application. Raises `BadRequest` for a target without agents, for names that are none, and if strangers would be
        let in."""
        check_proxies(self.forwarded_allow_ips)
        if self.place and self.place not in sys.path:
            sys.path.insert(0, self.place)
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
        app = apps[0].again(agents, **self._options(apps[0]), **options) if apps else None
        app = app or Gateway(agents, **self._options(None), **options)
        check_exposed(self.host, app.backend.security)
        return app

    def _options(self, app: Gateway | None) -> dict[str, Any]:
        # What the plan says nothing of is as the author has it.
        security = Security() if app is None else app.backend.security
        if self.token_digest and security.authenticate is not None:
            raise BadRequest("token", "the Gateway has a hook `authenticate`, which decides; leave the token out")
        told: dict[str, Any] = {"hosts": {*security.hosts, *self.hosts}, "origins": {*security.origins, *self.origins}}
        if self.token_digest:
            told["authenticate"] = by_digest({self.token_digest: Principal("token")})
        said = {"allows_kill": self.allows_kill, "backups": self.backups}
        return told | {name: value for name, value in said.items() if value}


def _found(target: str) -> object:
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
