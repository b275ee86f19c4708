"""The commands that serve agents: `serve` over HTTP, `mcp` over standard input and output."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable
from pathlib import Path
from typing import Annotated, Final

import typer

import perdure.actors
from perdure import BadRequest, Runtime
from perdure.actors import (
    Gateways,
    ServePlan,
    bound,
    check_certificate,
    joining,
    offers_of,
    stop_serving,
    token_digest,
)
from perdure.ledger import given_as, is_url
from perdure.scenarios.cast.demo import PLACE, Repeater
from perdure.scenarios.commands.ending import stopped_words
from perdure.scenarios.commands.options import HERE, Data, TakeOver
from perdure.scenarios.exits import heed_no_more, heed_sigterm, terminating

DEMO: Final = "perdure.scenarios.cast.demo:AGENTS"
TOKEN_CHARS_MIN: Final = 16
DEMO_DATA: Final = Path("perdure-demo")


def serve(
    targets: Annotated[
        list[str] | None, typer.Argument(help="module, module:app or module:agents; several are served together.")
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Its port; 0 for a free one.")] = 8787,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Processes that share the port.")] = 2,
    data: Data = HERE,
    address: Annotated[str | None, typer.Option(help="The Ray cluster to join, host:port.")] = None,
    take_over: TakeOver = False,
    token: Annotated[
        str | None,
        typer.Option(help="The token of every request. Others on this machine can see it here: prefer a file."),
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="A file with the token.", metavar="FILE")] = None,
    certfile: Annotated[str, typer.Option(help="A certificate: TLS is spoken.", metavar="FILE")] = "",
    keyfile: Annotated[str, typer.Option(help="Its key, if that is in a file of its own.", metavar="FILE")] = "",
    forwarded_allow_ips: Annotated[
        str, typer.Option(help="Proxies whose X-Forwarded headers are believed, with commas.", metavar="ADDRESSES")
    ] = "",
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A further name by which the gateway is asked; repeatable.", metavar="NAME")
    ] = None,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Pages elsewhere that may ask; repeatable.", metavar="ORIGIN")
    ] = None,
    allow_kill: Annotated[
        bool, typer.Option("--allow-kill", help="Let clients with the scope admin kill hosts and the supervisor.")
    ] = False,
    backups: Annotated[
        str,
        typer.Option(help="Where POST /api/backup makes backups: a directory, or a URL of fsspec.", metavar="PLACE"),
    ] = "",
    demo: Annotated[bool, typer.Option("--demo", help="Serve agents that need no key, and have them work.")] = False,
) -> None:
    """Serve agents over HTTP, for browsers, curl and programs in any language; and start what runs them, or join it.

    A target is a module with agents, a list or class in it, or a `perdure.gateway.Gateway`, whose options are taken. It is imported from
    the current directory. Beyond this machine a token is needed, or the Gateway's hook `authenticate`. Ctrl-C or SIGTERM ends the command
    with 0: nothing new is accepted, answers that are under way get a moment to end, and clients of streams are told to connect again. So
    does `perdure stop` of the directory. Warnings and errors of the gateway are printed here, and stand in `perdure logs`.

    Examples:
        perdure serve my_agents
        perdure serve my_agents:app --port 9000 --workers 4
        perdure serve my_agents --host 0.0.0.0 --token-file token --allow-host agents.example.org
        perdure serve --demo
    """
    given = [*(targets or ()), *([DEMO] if demo else ())]
    if not given:
        raise BadRequest("target", "name a module with agents, such as my_agents or my_agents:app, or give --demo")
    data = DEMO_DATA if demo and data == HERE else data
    check_certificate(certfile, keyfile)
    plan = ServePlan(
        tuple(given), str(Path.cwd()), host, port, allow_kill or demo, _digest(token, token_file),
        certfile and str(Path(certfile).resolve()), keyfile and str(Path(keyfile).resolve()), forwarded_allow_ips,
        tuple(allow_host or ()), tuple(allow_origin or ()),
        backups if is_url(backups) or not backups else str(Path(backups).resolve()),
    )  # fmt: skip
    plan.application()  # so that a mistake is told at once
    bound(host, port, shared=False).close()  # no other program listens there
    with bound(host, port) as reserved:
        plan = plan._replace(port=reserved.getsockname()[1])
        heed_sigterm()
        with Runtime(data, address=address, take_over=take_over) as runtime:
            if demo:
                runtime.agent(Repeater, PLACE).begin()
            wish_ms = asyncio.run(_serve(runtime, plan, workers, data))
            heed_no_more()  # what is open is closed in peace
            _stop_if_asked(data, wish_ms)


def _stop_if_asked(data: Path, timeout_ms: int | None) -> None:
    if timeout_ms is not None:
        for line in stopped_words(data, stop_serving(data, timeout_ms / 1000, lambda _: None)):
            print(line, flush=True)


def _digest(token: str | None, file: Path | None) -> str:
    if token is not None and file is not None:
        raise BadRequest("token", "give it by --token or by --token-file, not by both")
    if file is not None:
        try:
            token = file.read_text("utf-8").strip()
        except (OSError, UnicodeError) as problem:
            raise BadRequest("token_file", f"{file} cannot be read: {problem}") from problem
    if token is None:
        return ""
    if len(token) < TOKEN_CHARS_MIN:
        raise BadRequest("token", f"it has fewer than {TOKEN_CHARS_MIN} characters, so it could be guessed")
    return token_digest(token)


async def _serve(runtime: Runtime, plan: ServePlan, workers: int, data: Path) -> int | None:
    """Serve until a signal, or until somebody has asked for a stop of everything; returns how long work may go on in that case."""
    gateways = Gateways(runtime.cluster, plan, plan.port, workers, _say)
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()
    for each in (signal.SIGINT, *terminating()):
        loop.add_signal_handler(each, stopped.set)
    await gateways.start()
    try:
        print(f"Perdure serves {given_as(data)} at {plan.url} (Ctrl-C ends it)", flush=True)
        wish = await _first(stopped.wait(), gateways.kept(), gateways.stop_wish(), gateways.stopped())
        if isinstance(wish, str):
            _say(f"{given_as(data)}: {wish}, so this gateway ends too; `perdure serve` serves it again")
    finally:
        print("Draining.", file=sys.stderr, flush=True)
        await gateways.stop()
    return wish if isinstance(wish, int) and not stopped.is_set() else None


async def _first(*jobs: Awaitable[object]) -> object:
    tasks = [asyncio.ensure_future(each) for each in jobs]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for each in tasks:
        each.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, BaseException) and not isinstance(ended, asyncio.CancelledError):
            raise ended
    return done.pop().result()


def _say(what: str) -> None:
    print(f"perdure: {what}", file=sys.stderr, flush=True)


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
    # Loaded here: it needs an extra, which `serve` does without.
    asyncio.run(perdure.actors.serve_stdio(app.backend, choices))
