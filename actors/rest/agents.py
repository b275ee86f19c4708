"""Agents over REST: what is known of one, work of all, and calls of exposed methods."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.code.signatures import gives_bit_by_bit, unexposed
from perdure.actors.code.written import written
from perdure.actors.gateway.backend import Reached, asked, segments_of
from perdure.actors.gateway.chat_turns import ChatTurns, asked_by
from perdure.actors.gateway.refusals import NoSuchAgent, nothing_known
from perdure.actors.gateway.security import Scope
from perdure.actors.life.handle import Method, tell
from perdure.actors.rest import models
from perdure.actors.rest.operations import ApiRequest, Handlers, Operation
from perdure.actors.runtime.inspecting import Everywhere, Told, agent_told, cancelling, everywhere, rows_of, storages_in
from perdure.ledger import BadRequest, name_of, type_of


class AgentHandlers(Handlers):
    """The operations on agents."""

    @Operation("GET", "/api/runs/{run_id}/at-stake", models.AtStakeTold)
    async def at_stake(self, asked: ApiRequest) -> object:
        """How much would be deleted with a run."""
        return await self._backend.ask("at_stake", [asked.path.run_id])

    @Operation("GET", "/api/agents/{agent}/at-stake", models.AtStakeTold)
    async def agent_at_stake(self, asked: ApiRequest) -> object:
        """How much would be deleted with an agent."""
        return await self._backend.ask("at_stake", [], asked.path.agent)

    @Operation("DELETE", "/api/agents/{agent}/schedules/{schedule}", models.Confirmed, scope=Scope.OPERATE)
    async def cancel_schedule(self, asked: ApiRequest) -> object:
        """Have an agent cancel a schedule, or drop a queued item, by its key or id. It is told so exactly once, durably when this is
        answered. What its `on_start` declares is there again when it starts the next time."""
        for each in cancelling(await self._known(asked.path.agent), asked.path.schedule):
            await self._backend.ask("tell", *each)
        return {}

    @Operation("GET", "/api/agents/{agent}", models.AgentTold, query=models.AgentAsked)
    async def show_agent(self, asked: ApiRequest) -> object:
        """Everything about an agent: where it is, its mail, state, tables and work. It is not woken."""
        return await self._known(asked.path.agent, asked.query.sql)

    async def _known(self, agent: str, sql: str | None = None) -> Told:
        if not name_of(agent) or not type_of(agent):
            raise BadRequest("agent", f"{agent!r:.200} is no address of an agent; one is name@module:Class")
        known = cast("Told | None", await self._backend.ask("agent", agent))
        told = await asyncio.to_thread(_told, self._backend.data, known, agent, sql)
        if told is None:
            raise nothing_known(agent)
        return told

    @Operation("GET", "/api/fibers", models.WorkTold, query=models.WorkAsked)
    async def fibers(self, asked: ApiRequest) -> object:
        """Fibers of the agents that wrote last, newest first."""
        return await self._work("fibers", asked)

    @Operation("GET", "/api/schedules", models.WorkTold, query=models.WorkAsked)
    async def schedules(self, asked: ApiRequest) -> object:
        """Schedules and queued items of the agents that wrote last, newest first."""
        return await self._work("schedules", asked)

    @Operation("GET", "/api/turns", models.WorkTold, query=models.WorkAsked)
    async def turns(self, asked: ApiRequest) -> object:
        """Turns of the chat agents that wrote last, newest first."""
        return await self._work("turns", asked)

    async def _work(self, kind: str, asked: ApiRequest) -> object:
        which: models.WorkAsked = asked.query
        found = await asyncio.to_thread(_work_of_all, self._backend.data, kind, which)
        return {
            "rows": found.rows[: which.limit],
            "all": len(found.rows),
            "storages": found.storages,
            "unreadable": found.unreadable,
        }

    @Operation("POST", "/api/agents/{address}/call/{method}", models.Answered, scope=Scope.CHAT, body=models.CallAsked)
    async def call_method(self, given: ApiRequest) -> object:
        """Call an exposed method, at most once."""
        method, args = await self._method(given)
        return {"value": await asked(method(*args, **given.body.kwargs))}

    @Operation("POST", "/api/agents/{address}/tell/{method}", models.Confirmed, scope=Scope.CHAT, body=models.CallAsked)
    async def tell_method(self, given: ApiRequest) -> object:
        """Have an exposed method called exactly once, some time soon. It is durable when this is answered."""
        method, args = await self._method(given)
        await tell(method, *args, **given.body.kwargs)
        return {}

    @Operation("POST", "/api/agents/{address}/steer", models.Steered, scope=Scope.CHAT, body=models.SteerAsked)
    async def steer_turn(self, given: ApiRequest) -> object:
        """Say something to the turn of a chat agent that is under way. It is read before the next request to the model, or is the next
        message; it is durable when this is answered. A message with an id that is sent again is the same one."""
        reached, rest = await self._backend.reach(given.who, _address(given, behind=1))
        if rest or not issubclass(reached.agent_class, ChatAgent):
            raise NoSuchAgent("a turn is steered at /api/agents/CLASS/NAME/steer, of a chat agent")
        return await ChatTurns(reached.caller, given.who).steer(given.body.message)

    async def _method(self, given: ApiRequest) -> tuple[Method, Sequence[object]]:
        reached, rest = await self._backend.reach(given.who, _address(given, behind=2))
        if rest:
            raise NoSuchAgent("a method is called at /api/agents/CLASS/NAME/call/METHOD")
        name, args, kwargs = given.path.method, given.body.args, given.body.kwargs
        try:
            written(_exposed(reached, name), reached.agent_class, name).signature.bind(*args, **kwargs)
        except TypeError as problem:
            raise BadRequest("args", str(problem)) from None
        return asked_by(given.who, "rest", reached, name, args, kwargs)


def _address(given: ApiRequest, behind: int) -> list[str]:
    # Written as one segment it has encoded slashes between its names; written as several, those that are encoded are within names.
    written_as = segments_of(given.request, "/api/agents/")[:-behind]
    return written_as if len(written_as) > 1 else given.path.address.split("/")


def _exposed(reached: Reached, name: str) -> Callable[..., object]:
    # What is for the runtime alone is not known here.
    function: object = None if name.startswith("_") else getattr(reached.agent_class, name, None)
    if not callable(function) or not hasattr(function, "__perdure_exposed__"):
        if hasattr(getattr(ChatAgent, name, None), "__perdure_exposed__") and not issubclass(
            reached.agent_class, ChatAgent
        ):
            raise BadRequest(
                "method", f"{reached.agent_class.__name__} is no chat agent, and {name} is a method of those"
            )
        raise unexposed(reached.agent_class, name)
    if gives_bit_by_bit(function) or hasattr(function, "__perdure_followed__"):
        raise BadRequest(
            "method", f"{name} gives its values bit by bit; follow it over a WebSocket, or over a handle of a `Runtime`"
        )
    return function


def _told(data: Path, known: Told | None, agent: str, sql: str | None) -> Told | None:
    with storages_in(data) as source:
        told = agent_told(known, source, agent)
        return told if told is None or sql is None else {**told, "rows": rows_of(source, agent, sql)}


def _work_of_all(data: Path, kind: str, which: models.WorkAsked) -> Everywhere:
    with storages_in(data) as source:
        return everywhere(kind, source, which.storages, failed=which.failed)
