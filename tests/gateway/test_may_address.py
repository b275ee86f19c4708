"""What a principal sees where an author says whom it may address (`may_address`): its own agents, by whatever way it asks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from perdure.actors import Agent, exposed
from perdure.actors.gateway.security import Principal, Scope, bearer
from perdure.ledger import agent_id
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Answer, Door
from tests.gateway.test_asks import Shipper, by
from tests.gateway.test_rest_reading import client_of
from tests.gateway.world import visit
from tests.kit import played

OF_NO_AGENT = {"/api/asks", "/api/hosts", "/api/limits", "/api/upgrade"}
"""What may be read of the whole directory: its processes and code, and the questions that one may know of."""
TOKENS = bearer(
    {
        "ann": Principal("ann", frozenset({Scope.READ, Scope.CHAT})),
        "zoe": Principal("zoe", frozenset({Scope.READ, Scope.CHAT}), frozenset({"ops"})),
        "olaf": Principal("olaf", frozenset({Scope.READ, Scope.OPERATE})),
        "adam": Principal("adam", frozenset({Scope.READ, Scope.ADMIN})),
    }
)


class Inbox(Agent):
    """Somebody's, who has things shipped."""

    @exposed
    def note(self, text: str) -> str:
        """Keep a text."""
        self.state["text"] = text
        return text

    @exposed
    async def ship(self, to: str) -> None:
        """Have something shipped, about which people are asked."""
        await self.run_agent_tool(Shipper, to, run_id=f"shipped-for-{self.name}", detached=True)


def own(who: Principal, _kind: type[Agent], name: str) -> bool:
    return who.name == name


def address(name: str, kind: type[Agent] = Inbox) -> str:
    return quote(agent_id(f"{kind.__module__}:{kind.__name__}", name), safe="")


def play(story: Callable[[Door, Laboratory], Awaitable[None]], **hooks: Any) -> None:
    options = {"authenticate": TOKENS, "may_address": own, **hooks}
    visit([Inbox, Shipper], story, gateway_options=options)


def kind_of(refused: Answer) -> str:
    return str(refused.json()["error"]["type"])


@played(play)
async def test_an_agent_that_a_principal_may_not_call_is_not_shown_by_its_address_either(
    door: Door, laboratory: Laboratory, /
) -> None:
    for name in ("ann", "zoe"):
        call = await door.post(f"/api/agents/inbox/{name}/call/note", {"args": [name]}, headers=by(name))
        assert call.status == 200
    for below in ("", "/at-stake", "?sql=SELECT+1"):
        assert (await door.get(f"/api/agents/{address('ann')}{below}", headers=by("ann"))).status == 200
        refused = await door.get(f"/api/agents/{address('zoe')}{below}", headers=by("ann"))
        nobody = await door.get(f"/api/agents/{address('nobody')}{below}", headers=by("ann"))
        assert (refused.status, kind_of(refused)) == (nobody.status, kind_of(nobody)) == (404, "NoSuchAgent")
        words, of_nobody = (each.json()["error"]["message"] for each in (refused, nobody))
        assert words.replace("'zoe@", "'nobody@") == of_nobody
    forgotten = await door.ask("DELETE", f"/api/agents/{address('zoe')}", headers=by("adam"))
    assert (forgotten.status, kind_of(forgotten)) == (404, "NoSuchAgent")
    assert (await door.get(f"/api/agents/{address('zoe')}", headers=by("zoe"))).status == 200
    sub_agent = address(agent_id(f"{__name__}:Inbox", "zoe") + ">below", Shipper)
    assert (await door.get(f"/api/agents/{sub_agent}", headers=by("ann"))).status == 404


@played(play)
async def test_a_run_is_for_whoever_may_address_the_agent_that_asked_for_it_and_for_operators(
    door: Door, laboratory: Laboratory, /
) -> None:
    for name in ("ann", "zoe"):
        ship = f"/api/agents/inbox/{name}/call/ship"
        assert (await door.post(ship, {"args": ["ops"]}, headers=by(name))).status == 200
    client = await client_of(laboratory)
    await client.start(Shipper, "ops", run_id="ann")
    await client.start(Shipper, "ops", run_id="other")
    for below in ("", "/explain", "/at-stake"):
        for name, run_id in (("ann", "shipped-for-ann"), ("ann", "ann"), ("olaf", "shipped-for-zoe")):
            assert (await door.get(f"/api/runs/{run_id}{below}", headers=by(name))).status == 200
        for run_id in ("shipped-for-zoe", "other", "nobody"):
            refused = await door.get(f"/api/runs/{run_id}{below}", headers=by("ann"))
            assert (refused.status, refused.json()["error"]["args"]) == (
                404,
                ["run_id", f"no run {run_id!r} is known"],
            )
    assert (await door.get("/api/runs/shipped-for-zoe/events", headers=by("ann"))).status == 404
    child = f"/api/agents/{address('shipped-for-zoe', Shipper)}"
    assert (await door.get(child, headers=by("ann"))).status == 404
    for run_id in ("shipped-for-ann", "shipped-for-zoe", "ann", "other"):
        assert (await door.ask("DELETE", f"/api/runs/{run_id}", headers=by("olaf"))).status == 200


@played(play)
async def test_what_tells_of_all_agents_is_for_operators_where_not_everybody_may_address_all(
    door: Door, laboratory: Laboratory, /
) -> None:
    described = (await door.get("/api/openapi.json", headers=by("ann"))).json()["paths"]
    reads = {path for path, told in described.items() if told.get("get", {}).get("x-scope") == "read"}
    for path in sorted(each for each in reads if "{" not in each):
        asked = await door.get(path, headers=by("ann"))
        assert asked.status == (200 if path in OF_NO_AGENT else 403), path
        assert path in OF_NO_AGENT or "it needs the scope 'operate'" in asked.json()["error"]["message"]
        for name in ("olaf", "adam"):
            async with door.stream("GET", path, headers=by(name)) as (head, _):
                assert head.status == 200, path


async def asks_of(door: Door, name: str, count: int) -> list[str]:
    while len(found := (await door.get("/api/asks", headers=by(name))).json()["asks"]) != count:
        await asyncio.sleep(0.2)
    return [each["ask_id"] for each in found]


@played(play)
async def test_a_question_is_for_whoever_is_named_in_it_and_whoever_may_address_who_asks(
    door: Door, laboratory: Laboratory, /
) -> None:
    for name, to in (("ann", "ops"), ("zoe", "anybody")):
        await door.post(f"/api/agents/inbox/{name}/call/ship", {"args": [to]}, headers=by(name))
    hers, others = "shipped-for-ann:1", "shipped-for-zoe:1"
    assert set(await asks_of(door, "zoe", 2)) == {hers, others}
    assert await asks_of(door, "ann", 1) == [hers]
    assert set(await asks_of(door, "olaf", 2)) == {hers, others}
    hidden, nobody = [await door.get(f"/api/asks/{each}", headers=by("ann")) for each in (others, "x:1")]
    assert (hidden.status, kind_of(hidden)) == (nobody.status, kind_of(nobody)) == (404, "UnknownAsk")
    refused = await door.post(f"/api/asks/{others}/answer", {"value": True}, headers=by("ann"))
    assert (refused.status, kind_of(refused)) == (404, "UnknownAsk")
    for each in (hers, others):
        said = {"value": True, "answer_id": each}
        for _ in range(2):
            assert (await door.post(f"/api/asks/{each}/answer", said, headers=by("zoe"))).status == 200
