"""`perdure mcp`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from perdure.actors import ServePlan, joining, offers_of, serve_stdio
from perdure.ledger import BadRequest
from perdure.scenarios.commands.options import HERE, Data, TakeOver


def mcp(
    targets: Annotated[
        list[str], typer.Argument(help="module, module:Class or module:app; several are offered together.")
    ],
    data: Data = HERE,
    address: Annotated[str | None, typer.Option(help="The Ray cluster to join, host:port.")] = None,
    take_over: TakeOver = False,
) -> None:
    """Offer agents as tools to an MCP client that starts this command, over standard input and output.

    Each agent with a `run` is a tool, each chat agent as well. Of a `perdure.gateway.Gateway` its `mcp_tools` are. A call is a run under
    the data directory: it outlives this process, and an identical call joins it. Over HTTP a gateway offers the same at /mcp. It needs
    `pip install 'perdure[mcp]'`.

    Examples:
        perdure mcp my_agents
        perdure mcp my_agents:Importer --data ./perdure-data
    """
    opener = joining(data, address=address, take_over=take_over)
    app = ServePlan(tuple(targets), str(Path.cwd())).application(opener=opener)
    able = [each for each in app.backend.registry.roots.values() if callable(getattr(each, "run", None))]
    choices = app.mcp_tools or tuple(able)
    if not choices:
        raise BadRequest("target", "none of these agents has a `run`, so there is no tool to offer")
    offers_of(choices)
    asyncio.run(serve_stdio(app.backend, choices))
