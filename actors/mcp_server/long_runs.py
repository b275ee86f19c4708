"""The runs behind MCP's calls: durable before anything is answered, found again by whoever asked, and by nobody else.

A call has a *handle*, which is what the client sees as the id of its task or run. The run's id is made of the handle and the principal's
name. So another principal with the same handle comes to another run, which does not exist, and nothing has to be remembered.

The handle is made of the tool and an idempotency key, if the client gives one: the same key is the same run for ever. Without a key it is
made of the tool and the arguments: an identical call joins the run that is under way, and begins a new one after its end.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from perdure.actors.code.naming import type_name
from perdure.actors.gateway.backend import Backend, asked
from perdure.actors.gateway.registry import kebab
from perdure.actors.gateway.security import Principal
from perdure.actors.mcp_server.offers import AGENT, Offer
from perdure.ledger import HARD, BadRequest, UnknownRun
from perdure.policies import JsonObject

PROBES_MAX: Final = 64
"""Identical calls that are looked through for one that is under way."""


class RunProgress(NamedTuple):
    """How far a run is: it rises with each, and is a fraction while the run tells one."""

    value: float
    total: float | None
    message: str


class McpRuns:
    """Begins, watches and cancels the runs of principals."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def type_of(self, offer: Offer) -> str:
        return type_name(offer.agent_class, (await self._backend.client()).code_dir)

    async def begin(self, who: Principal, offer: Offer, given: Mapping[str, object], key: str) -> str:
        """Begin the run of a call, or find it, and return its handle. Raises `BadRequest`, naming the field."""
        assert offer.tool is not None
        input = offer.tool.agent_input(dict(given))
        handle = await self._handle(who, offer, given, key)
        client = await self._backend.client()
        await client.start(offer.agent_class, input, run_id=run_id_of(who, handle), began_by=who.began_by)
        return handle

    async def _handle(self, who: Principal, offer: Offer, given: Mapping[str, object], key: str) -> str:
        if key:
            return _digest("key", offer.name, key)
        asked_for = json.dumps(given, sort_keys=True, default=str)
        for number in range(PROBES_MAX):
            handle = _digest("call", offer.name, asked_for, str(number))
            known = await self._inspected(who, handle)
            if known is None or known["status"] not in HARD:
                return handle
        client = await self._backend.client()
        return _digest("call", offer.name, client.world.dice.token())

    async def seen(self, who: Principal, handle: str) -> dict[str, Any]:
        """What is known of a run. Raises `UnknownRun`, also for those of others."""
        known = await self._inspected(who, handle)
        if known is None:
            raise UnknownRun("run", f"no run is known as {handle!r:.100}")
        return known

    async def _inspected(self, who: Principal, handle: str) -> JsonObject | None:
        found: JsonObject | None = await self._backend.ask("inspect", run_id_of(who, handle))
        return found

    async def cancel(self, who: Principal, handle: str, reason: str = "cancelled over MCP") -> None:
        known = await self.seen(who, handle)
        if known["status"] not in HARD:
            await self._backend.ask("cancel", run_id_of(who, handle), None, reason)

    async def progress(self, who: Principal, handle: str) -> AsyncGenerator[RunProgress, None]:
        """What a run reports, until its hard end. Whoever stops watching changes nothing."""
        last = 0.0
        async for batch in self._backend.watch(run_id_of(who, handle)):
            for event in (frame["event"] for frame in batch.frames):
                if event["kind"] not in ("progress", "milestone"):
                    continue
                fraction = event.get("fraction")
                last = fraction if fraction is not None and fraction > last else last + 1e-6
                words = event.get("message") or event.get("name") or event.get("phase") or ""
                yield RunProgress(last, 1.0 if last <= 1 else None, str(words))

    async def call(self, who: Principal, offer: Offer, given: Mapping[str, object]) -> object:
        """Call an exposed method of an agent: at most once, or again after a death if it is repeatable."""
        arguments = dict(given)
        name = arguments.pop(AGENT, None)
        if not isinstance(name, str):
            raise BadRequest(AGENT, "name the agent")
        reached, _ = await self._backend.reach(who, [kebab(offer.agent_class.__name__), name])
        return await asked(getattr(reached.handle, offer.method)(**arguments))


def run_id_of(who: Principal, handle: str) -> str:
    return "mcp-" + _digest(who.name, handle)


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=16).hexdigest()
