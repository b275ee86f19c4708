"""Restate: child calls over its server. `python -m perdure.scenarios.bench.restate_children DIRECTORY` talks as `peers` says.

This process serves the handlers, and starts the server, which is a program of its own, on free ports of the loopback.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import hypercorn
import restate
from hypercorn.asyncio import serve
from restate import Context, Service, TerminalError

from perdure.scenarios.bench.peers import AWAITED, FAN_OUT, PROGRAMS_PATH, RESTATE_SERVER, answer

HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 300.0  # for one measure
BEGIN_S: Final = 60.0  # until the server is there
LOOK_S: Final = 0.2
FAREWELL_S: Final = 10.0

children = Service("children")
entered: set[str | bytes] = set()  # which of them depends on the version of the SDK


def enter(ctx: Context) -> None:
    # It would measure its journal.
    if ctx.request().id in entered:
        raise TerminalError("the handler was entered twice, so its times say nothing")
    entered.add(ctx.request().id)


@children.handler()
async def child(_ctx: Context, number: int) -> int:
    return number


@children.handler()
async def one_by_one(ctx: Context, count: int) -> list[float]:
    enter(ctx)
    seconds = []
    for number in range(count):
        begun_s = time.perf_counter()
        await ctx.service_call(child, arg=number)
        seconds.append(time.perf_counter() - begun_s)
    return seconds


@children.handler()
async def fan_out(ctx: Context, count: int) -> list[float]:
    enter(ctx)
    begun_s = time.perf_counter()
    await restate.gather(*(ctx.service_call(child, arg=number) for number in range(count)))
    return [time.perf_counter() - begun_s]


def post(port: int, path: str, body: object) -> Any:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://{HOST}:{port}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:  # noqa: S310 - the server is ours
        return json.load(reply)


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server((HOST, 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@contextmanager
def server(program: str, place: Path, ingress: int, admin: int, node: int) -> Iterator[None]:
    # As it is when nothing is configured but where it listens.
    command = [program, "--base-dir", str(place), "--listen-mode", "tcp", "--no-logo"]
    bound = {"RESTATE_INGRESS__BIND_ADDRESS": f"{HOST}:{ingress}", "RESTATE_ADMIN__BIND_ADDRESS": f"{HOST}:{admin}"}
    with (place / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--bind-ip", HOST, "--bind-port", str(node)],
            env={**os.environ, **bound},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(FAREWELL_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


async def measure(ingress: int, handler: str, count: int) -> list[float]:
    seconds: list[float] = await asyncio.to_thread(post, ingress, f"/children/{handler}", count)
    return seconds


async def announce(admin: int, app: int) -> None:
    async with asyncio.timeout(BEGIN_S):
        while True:
            try:
                await asyncio.to_thread(post, admin, "/deployments", {"uri": f"http://{HOST}:{app}"})
            except OSError:
                await asyncio.sleep(LOOK_S)
            else:
                return


async def converse(program: str, ingress: int, admin: int, app: int) -> None:
    await announce(admin, app)
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)  # noqa: ASYNC221 - nothing else goes on yet
    name = f"Restate {said.stdout.split()[1]}, Python SDK {version('restate-sdk')}"
    await answer(
        name, {AWAITED: partial(measure, ingress, "one_by_one"), FAN_OUT: partial(measure, ingress, "fan_out")}
    )


def main(place: Path) -> None:
    program = shutil.which(RESTATE_SERVER, path=PROGRAMS_PATH)
    assert program is not None  # `peers.installed` has looked before
    ingress, admin, node, app = free_ports(4)
    config = hypercorn.Config()
    config.bind, config.loglevel = [f"{HOST}:{app}"], "error"
    with server(program, place, ingress, admin, node):
        talk = partial(converse, program, ingress, admin, app)
        asyncio.run(serve(restate.app([children]), config, shutdown_trigger=talk))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
