"""A gateway in a simulated world: its client is that of the story, so everything behind it is simulated, kills included."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from perdure.actors import Agent, Client
from perdure.actors.serve.app import Gateway
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door
from tests.kit import T, played


def gateway(client: Client, agents: Iterable[type[Agent]], **options: Any) -> Gateway:
    """The application over a client that exists already."""

    @asynccontextmanager
    async def opened() -> AsyncGenerator[Client, None]:
        yield client

    return Gateway(agents, opener=opened, **options)


def visit(
    agents: Iterable[type[Agent]],
    story: Callable[[Door, Laboratory], Awaitable[Any]],
    *,
    timeout_ms: float = 600_000,
    gateway_options: dict[str, Any] | None = None,
    **simulation: Any,
) -> Any:
    """Play a story in front of a gateway with these agents. The world must come to rest afterwards."""
    with Laboratory(3, **simulation) as laboratory:

        async def played(client: Client) -> Any:
            app = gateway(client, agents, **(gateway_options or {}))
            try:
                return await story(Door(app), laboratory)
            finally:
                await app.backend.close()

        result = laboratory.play(played, timeout_ms)
        laboratory.settle()
        laboratory.simulation.raise_errors()
    return result


def visiting(*agents: type[Agent], **options: Any) -> Callable[[T], T]:
    """The test is a story in front of a gateway with these agents, with these options of `visit`."""
    return played(lambda story: visit(agents, story, **options))
