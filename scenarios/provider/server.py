"""A scripted OpenAI-compatible server, as a process of its own: real sockets, real server-sent events, and faults on demand.

    python -m perdure.scenarios.provider.server --port 0

prints one line of JSON (`port`, `control_port`, `pid`) when it listens, and serves `POST …/chat/completions`. What the model says is a
script (`provider_script`), what goes wrong is a plan (`provider_faults`). It logs each request, counts connections, and refuses a
conversation whose tool calls and results do not pair (`provider_pairing`). It may be killed at any time: with `--journal` the next one
takes over its log, its script and the state of its plan.

Under `/_control` on the other port, which also answers while the first is closed, bodies and answers are JSON:

| | |
|---|---|
| `PUT script`, `PUT plan`, `PUT pace` | from now on |
| `GET counters`, `GET log?since=n` | what happened; the log from request number n + 1 |
| `GET await?requests=n&ended=n&open=n&within_ms=t` | the counters, as soon as there were so many (`open`: exactly so many), or 408 |
| `POST release?number=n` | end the stall of request n (it stalls until then, if it has no duration) |
| `POST open` | end the refusal of connections |
| `POST forget` | empty the log |
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Final

from pydantic import ValidationError

from perdure.scenarios.provider.events import Failure, dumped, error_of
from perdure.scenarios.provider.faults import FaultPlan, Pace
from perdure.scenarios.provider.script import Script
from perdure.scenarios.provider.scripted import Counters, ScriptedProvider
from perdure.scenarios.provider.server_process import CONTROL, HOST, until_abandoned
from perdure.scenarios.provider.wire import HttpRequest, Wire

BACKLOG: Final = 4096  # a thousand agents may connect at once
WITHIN_MS: Final = 10_000.0


def wall_ms() -> float:
    """Milliseconds since 1970; the same for every process."""
    return time.time() * 1000


class Server:
    """The scripted provider behind sockets. The port stays reserved while it is closed, so that it can be opened again."""

    def __init__(self, scripted: ScriptedProvider, host: str) -> None:
        self.scripted = scripted
        self._host = host
        self._wires: set[Wire] = set()
        self._stalls: dict[int, asyncio.Future[None]] = {}
        self._waiters: list[asyncio.Future[None]] = []
        self._opening: asyncio.Task[None] | None = None
        self._front: asyncio.Server | None = None
        self._is_due = False

    async def open(self, port: int, control_port: int) -> dict[str, int]:
        """Listen on both ports, 0 for any free one. Raises `OSError` if one is taken."""
        self._loop = asyncio.get_running_loop()
        self._reserve = _bound(self._host, port)
        self._port = self._reserve.getsockname()[1]
        self._control = await self._listen(_bound(self._host, control_port))
        await self._mind_the_door()
        self.scripted.change = self._changed
        return {"port": self._port, "control_port": self._control.sockets[0].getsockname()[1], "pid": os.getpid()}

    async def _listen(self, sock: socket.socket, *counted: Callable[[Wire], None]) -> asyncio.Server:
        return await self._loop.create_server(lambda: Wire(self._serve, *counted), sock=sock, backlog=BACKLOG)

    def _told_front(self, wire: Wire) -> None:
        self._wires.add(wire)
        self.scripted.connected()

    # the door

    def _changed(self) -> None:
        """Wake the waiters, and open or close the port as the plan says. Once for a burst of events."""
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._look)

    def _look(self) -> None:
        self._is_due = False
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._turn_the_door()

    def _turn_the_door(self) -> None:
        """Shut it at once, or begin to open it."""
        is_shut = self.scripted.is_shut(wall_ms())
        if is_shut and self._front is not None:
            self._front.close()
            self._front = None
            for wire in [wire for wire in self._wires if wire.is_idle]:
                wire.close()
        elif not is_shut and self._front is None and self._opening is None:
            self._opening = self._loop.create_task(self._open_front())
        if is_shut and (until_ms := self.scripted.shut_until_ms()) is not None:
            self._loop.call_later(max(0.0, until_ms - wall_ms()) / 1000, self._changed)

    async def _open_front(self) -> None:
        self._front = await self._listen(_bound(self._host, self._port), self._told_front, self._wires.discard)
        self._opening = None
        self._changed()

    async def _mind_the_door(self) -> None:
        """Come back when the door is as the plan says."""
        self._turn_the_door()
        while self._opening is not None:
            await self._opening

    # requests

    async def _serve(self, wire: Wire, request: HttpRequest) -> None:
        if request.path.startswith(CONTROL):
            await wire.answer(*await self._controlled(request))
        elif request.method == "POST" and request.path.endswith("/chat/completions"):
            await self._chat(wire, request.body)
        else:
            told = f"{request.method} {request.path}: this server knows POST /v1/chat/completions"
            await wire.answer(404, {"error": error_of(Failure(message=told, type="invalid_request_error"))})

    async def _chat(self, wire: Wire, body: bytes) -> None:
        number, acts = self.scripted.receive(body, wall_ms())
        self._turn_the_door()  # before the answer, so that a client that has it finds the port as the plan says
        wire.keep_alive = wire.keep_alive and not self.scripted.is_shut(wall_ms())
        sent, how = 0, "gone"

        def count(size: int) -> None:
            nonlocal sent
            sent += size

        async def pause(ms: float | None) -> None:
            await self._pause(number, ms)

        try:
            how = await wire.carry_out(acts, pause, count)
        finally:
            self.scripted.ended(number, how, sent, wall_ms())

    async def _pause(self, number: int, ms: float | None) -> None:
        if ms is not None:
            await asyncio.sleep(ms / 1000)
            return
        stall = self._stalls[number] = self._loop.create_future()
        try:
            await stall
        finally:
            del self._stalls[number]

    # control

    async def _controlled(self, request: HttpRequest) -> tuple[int, Any]:
        what = request.path.removeprefix(CONTROL)
        try:
            match request.method, what:
                case "PUT", "script":
                    self.scripted.set_script(Script.model_validate_json(request.body))
                case "PUT", "plan":
                    self.scripted.set_plan(FaultPlan.model_validate_json(request.body))
                    await self._mind_the_door()
                case "PUT", "pace":
                    self.scripted.set_pace(Pace.model_validate_json(request.body))
                case "GET", "counters":
                    return 200, self.scripted.counters().model_dump()
                case "GET", "log":
                    since = int(request.query.get("since", "0"))
                    return 200, [record.model_dump(mode="json") for record in self.scripted.log(since)]
                case "GET", "await":
                    return await self._awaited(request.query)
                case "POST", "release":
                    return self._released(int(request.query.get("number", "0")))
                case "POST", "open":
                    self.scripted.open_door()
                    await self._mind_the_door()
                case "POST", "forget":
                    self.scripted.forget()
                case _:
                    return 404, {"error": f"{request.method} {request.path} is nothing that can be controlled"}
        except (ValidationError, ValueError) as error:
            return 400, {"error": f"{request.method} {what}: {error}"}
        return 200, {}

    async def _awaited(self, query: dict[str, str]) -> tuple[int, Any]:
        wanted = {name: int(value) for name, value in query.items() if name in ("requests", "ended", "open")}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(query.get("within_ms", WITHIN_MS)) / 1000):
                while not is_so(self.scripted.counters(), wanted):
                    waiter = self._loop.create_future()
                    self._waiters.append(waiter)
                    await waiter
        counters = self.scripted.counters()
        return 200 if is_so(counters, wanted) else 408, counters.model_dump()

    def _released(self, number: int) -> tuple[int, Any]:
        stall = self._stalls.get(number)
        if stall is None or stall.done():
            return 404, {"error": f"request {number} does not stall"}
        stall.set_result(None)
        return 200, {}


def is_so(counters: Counters, wanted: dict[str, int]) -> bool:
    """Whether at least so many requests came and ended, and exactly so many replies are open."""
    return (
        counters.requests >= wanted.get("requests", 0)
        and sum(counters.ended.values()) >= wanted.get("ended", 0)
        and counters.open == wanted.get("open", counters.open)
    )


def _bound(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setblocking(False)
    sock.bind((host, port))
    return sock


def _journal(path: Path, scripted: ScriptedProvider) -> None:
    """Take over what the file holds, and write on. A last line that a death cut short is nothing that anybody was answered."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    file: IO[bytes] = path.open("r+b" if path.exists() else "w+b", buffering=0)
    file.seek(sum(map(len, whole)))
    file.truncate()

    def write(entry: dict[str, Any]) -> None:
        file.write(dumped(entry).encode() + b"\n")

    scripted.journal = write
    scripted.restore(map(json.loads, whole), wall_ms())


async def serve(options: argparse.Namespace) -> None:
    """Serve until killed, or `--with-parent` until stdin is closed."""
    scripted = ScriptedProvider(pace=Pace(first_ms=options.first_ms, between_ms=options.between_ms))
    server = Server(scripted, options.host)
    if options.journal is not None:
        _journal(options.journal, scripted)
    if options.script is not None:
        scripted.set_script(Script.model_validate_json(options.script.read_bytes()))
    if options.plan is not None:
        scripted.set_plan(FaultPlan.model_validate_json(options.plan.read_bytes()))
    print(json.dumps(await server.open(options.port, options.control_port)), flush=True)
    await (until_abandoned() if options.with_parent else asyncio.Event().wait())


def main() -> None:
    """Run the server."""
    parser = argparse.ArgumentParser(
        prog="python -m perdure.scenarios.provider.server", description="A scripted OpenAI-compatible server."
    )
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int, default=0, help="0 for any free one")
    parser.add_argument("--control-port", type=int, default=0, help="0 for any free one")
    parser.add_argument("--script", type=Path, help="a script, as JSON")
    parser.add_argument("--plan", type=Path, help="a fault plan, as JSON")
    parser.add_argument("--first-ms", type=float, default=0.0, help="silence before the first event of a reply")
    parser.add_argument("--between-ms", type=float, default=0.0, help="silence between two events")
    parser.add_argument(
        "--journal", type=Path, help="a file that outlives the process, and from which the next one goes on"
    )
    parser.add_argument("--with-parent", action="store_true", help="end when stdin is closed")
    options = parser.parse_args()
    gc.freeze()
    asyncio.run(serve(options))


if __name__ == "__main__":
    main()
