"""The same application under plain uvicorn, and in an author's FastAPI application below a path of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from perdure.actors import Client, bound
from perdure.gateway import Gateway
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.cast import Counter
from tests.gateway.door import Door
from tests.gateway.world import gateway, visit


def mounted(client: Client) -> ASGIApp:
    """An author's application with a route of its own, and the gateway below `/perdure`."""
    theirs = FastAPI()

    @theirs.get("/own")
    def own() -> dict[str, str]:
        return {"whose": "theirs"}

    theirs.mount("/perdure", gateway(client, [Counter]))
    return theirs


@pytest.mark.shows(sub_agents="B160")
def test_below_a_path_of_an_authors_application_everything_is_where_it_was() -> None:
    async def story(_: Door, laboratory: Laboratory) -> None:
        client: Any = laboratory._client  # noqa: SLF001 - the story's own
        door = Door(mounted(client))
        assert (await door.get("/own")).json() == {"whose": "theirs"}
        page = await door.get("/perdure/")
        assert (page.status, b"Perdure" in page.body) == (200, True)
        assert (await door.get("/perdure/dashboard/main.js")).status == 200
        assert (await door.get("/perdure/api/runs/nobody")).json()["error"]["type"] == "UnknownRun"
        assert (await door.get("/api/runs/nobody")).status == 404
        assert (await door.get("/perdure/api/openapi.json")).json()["servers"] == [{"url": "/perdure"}]
        assert (await door.get("/perdure/api/runs/nobody", headers={"origin": "https://evil.example"})).status == 403
        async with door.socket("/perdure/agents/counter/a") as socket:
            await socket.until(type="cf_agent_identity")
        async with door.socket("/perdure/agents/nothing/a") as socket:
            assert await socket.receive() is None
            assert socket.closed
            assert socket.closed[0] == 4404

    visit([Counter], story)


def test_under_plain_uvicorn_it_is_served_and_closed_with_it() -> None:
    opened: list[str] = []

    @asynccontextmanager
    async def opener() -> AsyncGenerator[Any, None]:
        class Known:
            async def ask(self, name: str, *asked: Any) -> Any:
                return {"run_id": asked[0], "name": name} if name == "show" else None

        opened.append("open")
        yield Known()
        opened.append("closed")

    async def story() -> None:
        server = uvicorn.Server(uvicorn.Config(Gateway([Counter], opener=opener), log_config=None))
        with bound("127.0.0.1", 0) as listening:
            running = asyncio.ensure_future(server.serve([listening]))
            while not server.started:
                await asyncio.sleep(0.01)
            address = f"http://127.0.0.1:{listening.getsockname()[1]}"
            async with httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as client:
                assert (await client.get("/")).status_code == 200
                assert opened == []
                assert (await client.get("/api/runs/x")).status_code in {200, 404}
                assert opened == ["open"]
            server.should_exit = True
            await running

    asyncio.run(story())
    assert opened == ["open", "closed"]
