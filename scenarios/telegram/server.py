"""A pretended Telegram Bot API as a process of its own, over real HTTP, and the way to start it, to plan what goes wrong, and to look.

    with TelegramProcess() as telegram:
        bot = Telegram("1:token", secret_token="…", base_url=telegram.base_url)
        telegram.plan([BotFault(method="sendMessage", kind="silent")])
        …
        telegram.log()

`python -m perdure.scenarios.telegram.server` prints one line of JSON (`port`, `pid`) when it listens. Under `/_control` it answers `PUT
plan` and `GET log`; everything else is `/bot<token>/<method>`, as in the Bot API. It ends when its stdin is closed.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qsl

from pydantic import TypeAdapter

from perdure.scenarios.provider.events import dumped
from perdure.scenarios.provider.faults import End, Head, Send
from perdure.scenarios.provider.http import HttpRequest
from perdure.scenarios.provider.wire import Wire
from perdure.scenarios.telegram.desk import Answer, BotDesk, BotFault

HOST: Final = "127.0.0.1"
CONTROL: Final = "/_control/"
CALL_S: Final = 10.0
HEADERS: Final = (("content-type", "application/json"),)
FAULTS: Final = TypeAdapter(list[BotFault])


class TelegramFailed(Exception):
    """The process did not start, or does not answer; `problem` is in its own words."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem


class TelegramProcess:
    """One pretended Telegram."""

    @property
    def base_url(self) -> str:
        """What a bot's token is appended to."""
        return f"http://{HOST}:{self.port}/bot"

    def __enter__(self) -> Self:
        root = str(Path(__file__).absolute().parents[3])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "perdure.scenarios.telegram.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise TelegramFailed("its process ended before it listened; its reason is on stderr")
        self.port: int = json.loads(line)["port"]
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        with self._process as process:
            process.kill()

    def plan(self, faults: list[BotFault]) -> None:
        """These requests go wrong, beside what was planned before."""
        self._ask("PUT", "plan", FAULTS.dump_json(faults))

    def log(self) -> dict[str, Any]:
        """Everything that it saw: `messages`, `asked`, `methods`."""
        told: dict[str, Any] = self._ask("GET", "log")
        return told

    def _ask(self, method: str, what: str, body: bytes | None = None) -> Any:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=CALL_S)
        try:
            connection.request(method, CONTROL + what, body)
            response = connection.getresponse()
            told = json.loads(response.read())
        except OSError as error:
            raise TelegramFailed(f"{method} {what}: it does not answer ({error})") from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise TelegramFailed(f"{method} {what}: {told}")
        return told


class BotServer:
    """The desk behind HTTP."""

    def __init__(self) -> None:
        self.desk = BotDesk()

    async def open(self, port: int) -> int:
        """Listen; returns the port."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Wire(self._serve, lambda _: None, lambda _: None), HOST, port, backlog=1024
        )
        return int(server.sockets[0].getsockname()[1])

    async def _serve(self, wire: Wire, request: HttpRequest) -> None:
        answer = self._answer(request)
        if answer.after_s:
            await asyncio.sleep(answer.after_s)
        acts = (
            (End("reset"),)
            if answer.status is None
            else (Head(answer.status, HEADERS), Send(dumped(answer.body).encode()), End("whole"))
        )
        await wire.carry_out(acts, _no_pause, lambda _bytes: None)

    def _answer(self, request: HttpRequest) -> Answer:
        if request.path.startswith(CONTROL):
            return self._controlled(request.method, request.path.removeprefix(CONTROL), request.body)
        _, parted, method = request.path.removeprefix("/bot").rpartition("/")
        given = dict(parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True))
        return self.desk.receive(method if parted else "", given, round(time.time() * 1000))

    def _controlled(self, method: str, what: str, body: bytes) -> Answer:
        if (method, what) == ("PUT", "plan"):
            self.desk.plan(FAULTS.validate_json(body))
            return Answer(200, {})
        return Answer(200, self.desk.log()) if (method, what) == ("GET", "log") else Answer(404, {"error": what})


async def _no_pause(_ms: float | None) -> None:
    raise AssertionError("nothing here waits in the middle of an answer")


async def serve() -> None:
    """Serve until whoever holds the other end of stdin is gone."""
    port = await BotServer().open(0)
    print(json.dumps({"port": port, "pid": os.getpid()}), flush=True)
    over = asyncio.Event()

    def hear() -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            over.set()

    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), hear)
    await over.wait()


if __name__ == "__main__":
    asyncio.run(serve())
