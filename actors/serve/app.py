"""The gateway as one ASGI application: under any ASGI server, mounted in an author's own application, or under `perdure serve`, whose
processes make it of a `ServePlan`.

app = Gateway(agents=[Assistant], data="./perdure-data")
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from inspect import getmembers, isclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.actors.ag_ui import routes as ag_ui
from perdure.actors.agent.agent import Agent
from perdure.actors.agents_client import routes as agents_client
from perdure.actors.ai_sdk import routes as ai_sdk
from perdure.actors.dashboard import page
from perdure.actors.gateway.backend import Backend, MayAddress, Stopper, Striker
from perdure.actors.gateway.client_connection import Opener
from perdure.actors.gateway.hooks import check_hook
from perdure.actors.gateway.problems import unrouted
from perdure.actors.gateway.rate_limits import GatewayLimits
from perdure.actors.gateway.registry import Registry
from perdure.actors.gateway.security import (
    BEARER,
    Authenticate,
    Principal,
    Security,
    by_digest,
    check_exposed,
    check_proxies,
    host_names,
    page_origins,
)
from perdure.actors.gateway_bus import GatewayBus
from perdure.actors.mcp_server import routes as mcp
from perdure.actors.mcp_server.offers import Choice
from perdure.actors.rest import routes as rest
from perdure.actors.serve.guard import Guard
from perdure.actors.telemetry.telemetry import TRACE, TelemetrySettings
from perdure.ledger import BadRequest, check_slashes
from perdure.policies import context_of

PROTOCOLS = (rest.routes, ai_sdk.routes, ag_ui.routes, agents_client.routes, page.routes)
JOINING = "perdure.actors.gateway.joining"  # brings Ray
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
EXPOSED = ("retry-after", "x-vercel-ai-ui-message-stream", "www-authenticate")
ASKED_AGAIN_S = 600
FIELD: Final = "target"
APP: Final = "app"


# ---------------------------------------------------------------- traced
# Where a request stands in a trace: what it asks for is below whoever made it, by the header `traceparent` of the W3C.


class Traced:
    # A header that is none changes nothing.

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        place = context_of(headers.get(b"traceparent", b"").decode("latin-1"))
        token = TRACE.set(place)
        try:
            await self._app(scope, receive, send)
        finally:
            TRACE.reset(token)


# ---------------------------------------------------------------- app


class Gateway:
    """An ASGI application by which browsers and other programs reach agents.

    Args:
        agents: the classes that have an address: `/agents/{class}/{name}`, with the class in kebab case.
        data: the data directory. What serves it is joined, else started, by the first request.
        address: the Ray cluster to join, as for `Runtime`.
        authenticate: `authenticate(connection: HTTPConnection) -> Principal | None`, sync or async: names the principal of each request or
            WebSocket; None for nobody, who gets 401. By default everybody who reaches the address may do everything.
        may_address: `may_address(who: Principal, agent_class: type[Agent], name: str) -> bool`, sync or async: whether a principal may
            address an agent, by whatever protocol; if not, it is as if nothing were there. Of sub-agents, and of runs that an agent has
            asked for, it is asked about the agent at their root; of other runs with the run's id as name. With this hook, what tells of
            all agents at once, and other runs than those that it allows, are for the scopes `operate` and `admin`.
        hosts: further host names by which the gateway is asked, beside those of loopback.
        origins: pages elsewhere that may ask, as `https://example.org`.
        allows_kill: whether whoever has the scope `admin` may kill processes, to watch what recovers. It needs a `striker`.
        limits: how much is taken from those who ask, and how often.
        mcp_tools: what is offered over MCP: classes of agents with a `run`, and exposed methods such as `Counter.add`.
        opener: opens the client in another way; for servers that are part of a cluster already, and for tests.
        backups: where `POST /api/backup` makes backups: a directory, or a URL of fsspec; nowhere by default.
        striker: ends processes; `perdure serve` has one.
        stopper: has the directory stopped; `perdure serve` has one.
        neighbours: the other processes that serve the same; `perdure serve` has them.
    """

    def __init__(  # noqa: PLR0913 - all that an author may say of a gateway
        self,
        agents: Iterable[type[Agent]] = (),
        *,
        data: str | Path = "./perdure-data",
        address: str | None = None,
        authenticate: Authenticate | None = None,
        may_address: MayAddress | None = None,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        allows_kill: bool = False,
        limits: GatewayLimits | None = None,
        mcp_tools: Iterable[Choice] = (),
        opener: Opener | None = None,
        backups: str | Path = "",
        striker: Striker | None = None,
        stopper: Stopper | None = None,
        neighbours: GatewayBus | None = None,
    ) -> None:
        backups = str(backups)
        check_slashes(backups, "backups")
        check_hook("authenticate", authenticate, "connection")
        check_hook("may_address", may_address, "who", "agent_class", "name")
        check_hook("opener", opener)
        self._given: dict[str, Any] = {
            "data": data, "address": address, "authenticate": authenticate, "may_address": may_address,
            "hosts": tuple(hosts), "origins": tuple(origins), "allows_kill": allows_kill, "limits": limits,
            "mcp_tools": tuple(mcp_tools), "opener": opener, "striker": striker,
            "backups": backups, "stopper": stopper, "neighbours": neighbours,
        }  # fmt: skip
        security = Security(authenticate, host_names(self._given["hosts"]), page_origins(self._given["origins"]))
        opener = opener or importlib.import_module(JOINING).joining(data, address=address)
        self.limits = limits or GatewayLimits()
        self.mcp_tools: tuple[Choice, ...] = self._given["mcp_tools"]
        self.backend = Backend(
            Registry(agents), security, opener, may_address, striker=striker if allows_kill else None, data=Path(data),
            backups=backups, stopper=stopper, neighbours=neighbours,
        )  # fmt: skip
        self._app = Starlette(
            routes=[
                *mcp.routes(self.backend, self.mcp_tools),
                *(each for routes in PROTOCOLS for each in routes(self.backend)),
            ],
            middleware=[
                *_cors(security),
                Middleware(Guard, security=security, limits=self.limits, refusals={mcp.PATH: mcp.refusal}),
                *([Middleware(Traced)] if TelemetrySettings.of(os.environ).is_on else ()),
            ],
            exception_handlers={HTTPException: unrouted},
            lifespan=self._lifespan,
        )

    @property
    def routes(self) -> list[BaseRoute]:
        return self._app.routes

    def again(self, more: Iterable[type[Agent]] = (), **changes: Any) -> Gateway:
        """Another gateway for the same agents and `more` of them, with these options instead of its own."""
        return Gateway([*self.backend.registry.roots.values(), *more], **{**self._given, **changes})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request or serve a connection."""
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.backend.close()


def _cors(security: Security) -> list[Middleware]:
    if not security.origins:
        return []
    is_open = "*" in security.origins
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=["*"] if is_open else sorted(security.origins),
            allow_credentials=not is_open,  # browsers take no answer to a request with cookies that is open to every page
            allow_methods=METHODS,
            allow_headers=["*"],
            expose_headers=["*"] if is_open else EXPOSED,
            max_age=ASKED_AGAIN_S,
        )
    ]


# ---------------------------------------------------------------- perdure serve


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
            told["authenticate"] = by_digest({self.token_digest: Principal(BEARER)})
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
