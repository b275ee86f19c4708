"""What the tests of MCP offer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from starlette.requests import HTTPConnection

from perdure.actors import Agent
from perdure.actors.gateway.security import Principal, Scope
from tests.gateway.cast import Counter
from tests.gateway.clerk import Clerk


class Wanted(BaseModel):
    """Rows that are wanted."""

    rows: int
    gate: str = ""


class Imported(BaseModel):
    """What was imported."""

    rows: int
    attempt: int


class Importer(Agent):
    """Import rows, and tell how far it is."""

    async def run(self, input: Wanted, run: Any) -> Imported:
        """Waits for a file to be there, if it is named."""
        await self.report_progress(fraction=0.5, message="half way")
        if input.rows < 0:
            raise ValueError("there are no such rows")
        while input.gate and not await asyncio.to_thread(Path(input.gate).exists):
            await asyncio.sleep(0.02)
        return Imported(rows=input.rows, attempt=run.attempt)


TOOLS = (Importer, Clerk, Counter.add)


def by_name(connection: HTTPConnection) -> Principal | None:
    """Everybody but `nobody` is who they say, and may what they say."""
    name, scopes = connection.headers.get("x-name", "anyone"), connection.headers.get("x-scopes", " ".join(Scope))
    return None if name == "nobody" else Principal(name, frozenset(map(Scope, scopes.split())))
