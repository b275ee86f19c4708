"""MCP over standard input and output: one client, which has started this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from mcp.server.stdio import stdio_server

from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.security import Principal
from perdure.actors.mcp_server.offers import Choice
from perdure.actors.mcp_server.server import McpServer
from perdure.actors.tasks import awaited

LOCAL = Principal("stdio")


async def serve_stdio(backend: Backend, choices: Iterable[Choice]) -> None:
    """Serve until standard input ends. Whatever else is printed meanwhile goes to standard error. The cluster is started, or joined, beside
    the first messages, so runs of an earlier process go on at once."""
    server = McpServer(backend, choices, LOCAL).server
    async with stdio_server() as (heard, said):
        opening = awaited(backend.client())
        try:
            await server.run(heard, said, server.create_initialization_options())
        finally:
            await asyncio.wait({opening})  # if it failed, each call was told so
            await backend.close()
