"""An MCP server over stdio with everything behind it in one process. Its process id is in `pid`.

python -m tests.gateway.mcp_stdio_server DIR
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from perdure.actors import Client, serve_stdio
from perdure.actors.serve.app import Gateway
from perdure.ledger.storage.file_disk import FileDisk
from perdure.ledger.store.duckdb_store import DuckDBStore
from tests.actors.one_process import OneProcess
from tests.gateway.clerk import Clerk, script
from tests.gateway.mcp_cast import Importer
from tests.gateway.server import LIMITS
from tests.ledger.directories import formatted


async def serve(data: Path) -> None:
    """Serve until standard input ends."""
    script()
    everything = OneProcess(LIMITS, DuckDBStore(formatted(data) / "ledger", fsync=False), FileDisk(data / "agents"))

    async def story(world: OneProcess) -> None:
        @asynccontextmanager
        async def opened() -> AsyncGenerator[Client, None]:
            yield world.client

        app = Gateway([Importer, Clerk], opener=opened)
        await serve_stdio(app.backend, [Importer, Clerk])

    await everything.play(story, patience_s=None)


if __name__ == "__main__":
    place = Path(sys.argv[1])
    (place / "pid").write_text(str(os.getpid()), "utf-8")
    asyncio.run(serve(place))
