"""What each protocol is given: the client, the registry, who asks, and the events of runs."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, cast
from urllib.parse import quote, unquote

from starlette.requests import HTTPConnection
from starlette.routing import Match, Route
from starlette.types import Scope as Asgi

from perdure.actors.agent.agent import Agent
from perdure.actors.code.author_call import tried
from perdure.actors.code.naming import type_name
from perdure.actors.gateway.client_connection import ClientConnection, Opener
from perdure.actors.gateway.feeds import Batch, RunFeeds
from perdure.actors.gateway.hooks import call_hook
from perdure.actors.gateway.problems import AgentRaised
from perdure.actors.gateway.refusals import Forbidden, NoSuchAgent, nothing_known
from perdure.actors.gateway.registry import Registry
from perdure.actors.gateway.security import Principal, Scope, Security
from perdure.actors.gateway_bus import GatewayBus
from perdure.actors.life.handle import Handle, address_of
from perdure.actors.link.caller import CallerSide
from perdure.actors.link.messages import Fields, Plain
from perdure.actors.link.questions import about_ask
from perdure.actors.runtime.client import Client
from perdure.ledger import AskClosed, PerdureError, UnknownAsk, UnknownRun, agent_id, path_of, sub_agent_id

T = TypeVar("T")

MayAddress = Callable[[Principal, type[Agent], str], bool | Awaitable[bool]]
"""An author's word on whether a principal may address an agent, of a class and a name. A refusal is told as if nothing were there."""
OPERATORS: Final = frozenset({Scope.OPERATE, Scope.ADMIN})
"""Whoever has one of these sees what is told of all agents, and each run, whatever that word is."""


Striker = Callable[[str, int], Awaitable[str | None]]
"""Ends the supervisor or a host, by its name and its number, and tells how; None if it had ended before."""


Stopper = Callable[[int], None]
"""Has a directory and what serves it stopped, once work has had so many ms to end by itself."""


class Reached(NamedTuple):
    """An agent that somebody has addressed: its handle for this loop, the way to its own methods, its class, its name, and its address in
    the ledger."""

    handle: Handle
    caller: CallerSide
    agent_class: type[Agent]
    name: str
    agent_id: str


class Backend:
    """What is behind every protocol of one gateway.

    Args:
        registry: the classes that have an address.
        security: how requests are checked.
        opener: opens the client, on the first request.
        may_address: an author's word on who may address whom; by default everybody who has the scope.
        striker: ends a process on behalf of whoever has the scope `admin`; None if nobody may.
        data: the data directory.
        backups: where backups of it are made on demand, as for `perdure backup`; empty if nowhere.
        stopper: has the directory stopped, after so many ms for what is at work; None if nobody may.
        neighbours: the other processes of the gateway.
    """

    def __init__(
        self,
        registry: Registry,
        security: Security,
        opener: Opener,
        may_address: MayAddress | None,
        *,
        striker: Striker | None,
        data: Path,
        backups: str,
        stopper: Stopper | None,
        neighbours: GatewayBus | None,
    ) -> None:
        self.neighbours = neighbours or GatewayBus()
        self.data, self.backups, self.stopper = data, backups, stopper
        self.registry, self.security, self.striker = registry, security, striker
        self._connection = ClientConnection(opener)
        self._may_address = may_address
        self._feeds = RunFeeds()
        self.following = 0  # turns; see `TurnFollower`
        self.at_end: list[Callable[[], Awaitable[None]]] = []

    async def client(self) -> Client:
        return await self._connection.client()

    async def ask(self, name: str, *args: object) -> Plain:
        # This asks the supervisor; see `Client.ask`.
        return await (await self.client()).ask(name, *args)

    async def close(self) -> None:
        for stop in self.at_end:
            await stop()
        await self._connection.close()

    def principal(self, connection: HTTPConnection, scope: Scope) -> Principal:
        """Who asks. Raises `Forbidden` without this scope. The guard has named the principal before any route is entered."""
        who = cast("Principal", connection.state.principal)
        who.check(scope)
        return who

    async def reach(self, who: Principal, segments: Sequence[str]) -> tuple[Reached, list[str]]:
        """The agent at an address, and the segments that follow it. Nothing is created: a call of the handle wakes the agent.

        Raises `NoSuchAgent`. The gates of ancestors (`on_before_sub_agent`) are asked when the handle is called.
        """
        steps, rest = self.registry.path(segments)
        root = steps[0]
        if not await self._may(who, root.agent_class, root.name):
            raise NoSuchAgent(f"nothing is addressed as /{'/'.join(segments[:2])} here")
        client = await self.client()
        handle: Handle | None = None
        for step in steps:
            handle = cast("Handle", client.agent(step.agent_class, step.name, handle))
        address = address_of(handle)
        assert handle is not None
        assert address is not None
        last, caller = steps[-1], CallerSide(client.caller, address)
        return Reached(handle, caller, last.agent_class, last.name, address.agent_id), rest

    async def _may(self, who: Principal, agent_class: type[Agent], name: str) -> bool:
        hook = self._may_address
        return hook is None or bool(await call_hook("may_address", hook, who, agent_class, name))

    def is_bound(self, who: Principal) -> bool:
        # Whether not everything that is here is for this one.
        return self._may_address is not None and not OPERATORS & who.scopes

    def check_all(self, who: Principal) -> None:
        """Raises `Forbidden` for one who may address some agents, where all are told of."""
        if self.is_bound(who):
            raise Forbidden(f"this tells of all agents, and {who.name} may address some; it needs the scope 'operate'")

    async def check_agent(self, who: Principal, address: str) -> None:
        """Raises `NoSuchAgent`, as if nothing were there."""
        if self._may_address is not None and not await self._may_root(who, *path_of(address)[0]):
            raise nothing_known(address)

    async def check_run(self, who: Principal, run_id: str) -> None:
        """Raises `UnknownRun`, as if nothing were there."""
        if self.is_bound(who):
            run = await self.ask("inspect", run_id)
            root = None if run is None else path_of(run["parent"])[0] if run["parent"] else (run["agent_type"], run_id)
            if root is None or not await self._may_root(who, *root):
                raise UnknownRun("run_id", f"no run {run_id!r} is known")

    async def check_ask(self, who: Principal, ask_id: str) -> None:
        """Raises `UnknownAsk`, as if nothing were there."""
        if self.is_bound(who):
            with suppress(AskClosed):  # who sends an answer again is told of the first
                if not await self.may_see_ask(who, await self.ask(*about_ask(ask_id))):
                    words = f"no question {ask_id!r:.200} is known; `perdure asks` lists the open ones"
                    raise UnknownAsk("ask_id", words)

    async def may_see_ask(self, who: Principal, ask: Fields) -> bool:
        # One who has begun the run, or is named in the question, may know of it, too.
        is_theirs = who.is_person and not {who.name, *who.groups}.isdisjoint([ask["began_by"], *ask["to"]])
        return is_theirs or not self.is_bound(who) or await self._may_root(who, *path_of(ask["agent"])[0])

    async def _may_root(self, who: Principal, agent_type: str, name: str) -> bool:
        # As where an agent is called, the word is on the root of its family. A run's child is below whoever asked for the run (`own_id`).
        run = await self.ask("inspect", name)
        if run is not None and run["attempt"] and run["parent"] and run["agent_type"] == agent_type:
            return await self._may_root(who, *path_of(run["parent"])[0])
        agent_class = await self.class_of(agent_type)
        return agent_class is not None and await self._may(who, agent_class, name)

    async def class_of(self, said: str) -> type[Agent] | None:
        # A class that is served, by its type or as it stands in addresses.
        code_dir = (await self.client()).code_dir
        served = self.registry.roots.items()
        return next((each for address, each in served if said in (address, type_name(each, code_dir))), None)

    async def own_id(self, address: str) -> str:
        # The id under which it lives and asks for runs: that of a run's child does not begin with its parent's.
        (root_type, root), *steps = path_of(address)
        own = agent_id(root_type, root)
        for agent_type, name in steps:
            run = await self.ask("inspect", name)
            is_child = run is not None and run["attempt"] and (run["parent"], run["agent_type"]) == (own, agent_type)
            own = agent_id(agent_type, name) if is_child else sub_agent_id(own, agent_type, name)
        return own

    async def watch(self, run_id: str, after: int = -1) -> AsyncGenerator[Batch, None]:
        """The events of a run after a number, in encoded batches, until its hard end. Raises `UnknownRun`."""
        client = await self.client()
        if after >= 0 and await client.is_told(run_id, after):
            return
        async with aclosing(self._feeds.watch(client, run_id, after)) as batches:
            async for batch in batches:
                yield batch


INNER: Final = "\udc2f"
"""A slash within a name, where a path is looked at that is decoded: half of a pair is in none."""


class RouteOfIds(Route):
    # An id that ends in `/events` is no sub-route, if its slash is encoded.

    def matches(self, scope: Asgi) -> tuple[Match, Asgi]:
        match, found = super().matches(_with_inner_slashes(scope))
        names = {name: value.replace(INNER, "/") for name, value in found.get("path_params", {}).items()}
        return match, {**found, "path_params": names} if found else found


def _with_inner_slashes(scope: Asgi) -> Asgi:
    # A slash that came encoded is within a name, and no route ends a name there.
    raw = scope.get("raw_path") or b""
    path = unquote(re.sub("%2f", INNER, raw.decode("latin-1"), flags=re.IGNORECASE))
    is_the_same = path.replace(INNER, "/") == scope["path"]  # nobody before us has rewritten it
    return {**scope, "path": path} if INNER in path and is_the_same else scope


def segments_of(connection: HTTPConnection, prefix: str) -> list[str]:
    # Each is decoded once: a slash within a name is no end of it.
    raw = connection.scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(connection.scope["path"])
    path = path.removeprefix(quote(connection.scope.get("root_path", "")))
    return [unquote(each) for each in path.removeprefix(prefix).split("/")]


async def asked(call: Awaitable[T]) -> T:
    """Await a call of an author's method. What the author's code raises becomes `AgentRaised`; errors of Perdure stay."""
    answer, problem = await tried(call)
    if isinstance(problem, PerdureError):
        raise problem
    if problem is not None:
        raise AgentRaised(problem) from problem
    return cast("T", answer)
