"""A gateway with everything behind it in one process, on real sockets and real files: what clients of other languages are tried on.

    python -m tests.gateway.server '{"data": "DIR", "port": 0, "agents": ["tests.gateway.cast:Talker"]}'

It prints one line once it listens: `listening on PORT`. It can be killed and started again on the same directory and port. It ends when
its standard input ends, so none is left behind. The model is the scripted provider of `tests.actors.chat.desk.Outside`; `setup` names a
function that is called first, for instance to give it a script.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from perdure.actors import Client
from perdure.actors.serve.app import Gateway, ServePlan
from perdure.actors.serve.listening import Server, bound
from perdure.ledger.storage.file_disk import FileDisk
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.policies import Limits
from tests.actors.one_process import OneProcess
from tests.ledger.directories import formatted

LIMITS = Limits(hosts_max=1, hosts_warm=1, threads_max=8)


def named(name: str) -> Any:
    """What `module:name` stands for."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


async def serve(given: dict[str, Any]) -> None:
    """Serve until standard input ends."""
    if "setup" in given:
        named(given["setup"])(**given.get("setup_options", {}))
    data = Path(given["data"])
    everything = OneProcess(
        replace(LIMITS, **given.get("limits", {})),
        DuckDBStore(formatted(data) / "ledger", fsync=False),
        FileDisk(data / "agents"),
    )

    async def story(world: OneProcess) -> None:
        @asynccontextmanager
        async def opened() -> AsyncGenerator[Client, None]:
            yield world.client

        options = {name: named(value) for name, value in given.get("hooks", {}).items()}
        app = Gateway(
            [named(each) for each in given["agents"]], opener=opened, data=data, **options, **given.get("options", {})
        )
        listening = bound("127.0.0.1", given.get("port", 0))
        server = Server(app, app.limits, ServePlan((), **given.get("plan", {})))
        serving = asyncio.ensure_future(server.serve([listening]))
        await server.is_up.wait()
        print("listening on", listening.getsockname()[1], flush=True)  # noqa: T201
        await asyncio.to_thread(sys.stdin.read)
        server.should_exit = True
        await serving

    await everything.play(story, patience_s=None)


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
