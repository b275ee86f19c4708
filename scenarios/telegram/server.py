"""A pretended Telegram Bot API as a process of its own, over real HTTP, and the way to start it, to plan what goes wrong, and to look.

    with TelegramProcess() as telegram:
        bot = Telegram("1:token", secret_token="…", base_url=telegram.base_url)
        telegram.plan([BotFault(method="sendMessage", kind="silent")])
        …
        telegram.log()

Under `/_control` the server answers `PUT plan` and `GET log`; everything else is `/bot<token>/<method>`, as in the Bot API.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qsl

from pydantic import TypeAdapter

from perdure.scenarios.provider.faults import End
from perdure.scenarios.provider.server_process import CONTROL, HOST, ServerProcess, until_abandoned
from perdure.scenarios.provider.wire import HttpRequest, Wire
from perdure.scenarios.telegram.bot_api import Answer, BotApi, BotFault

MODULE: Final = "perdure.scenarios.telegram.server"
FAULTS: Final = TypeAdapter(list[BotFault])
RESET: Final = (End("reset"),)


class TelegramProcess:
    """One pretended Telegram. Its methods raise `ServerFailed`."""

    @property
    def base_url(self) -> str:
        """What a bot's token is appended to."""
        return f"http://{HOST}:{self._process.told['port']}/bot"

    def __enter__(self) -> Self:
        self._process = ServerProcess(MODULE)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._process.kill()

    def plan(self, faults: list[BotFault]) -> None:
        """These requests go wrong, beside what was planned before."""
        self._process.ask("PUT", "plan", None, FAULTS.dump_json(faults))

    def log(self) -> dict[str, Any]:
        """Everything that it saw: `messages`, `asked`, `methods`."""
        told: dict[str, Any] = self._process.ask("GET", "log")
        return told


class BotServer:
    """The Bot API behind HTTP."""

    def __init__(self) -> None:
        self._api = BotApi()

    async def serve(self, wire: Wire, request: HttpRequest) -> None:
        """Answer one request. One that goes unanswered is reset."""
        answer = self._answer(request)
        if answer.after_s:
            await asyncio.sleep(answer.after_s)
        if answer.status is None:
            await wire.carry_out(RESET, _no_pause, lambda _bytes: None)
        else:
            await wire.answer(answer.status, answer.body)

    def _answer(self, request: HttpRequest) -> Answer:
        if request.path.startswith(CONTROL):
            return self._controlled(request.method, request.path.removeprefix(CONTROL), request.body)
        _, parted, method = request.path.removeprefix("/bot").rpartition("/")
        given = dict(parse_qsl(request.body.decode("utf-8", "replace"), keep_blank_values=True))
        return self._api.receive(method if parted else "", given, round(time.time() * 1000))

    def _controlled(self, method: str, what: str, body: bytes) -> Answer:
        if (method, what) == ("PUT", "plan"):
            self._api.plan(FAULTS.validate_json(body))
            return Answer(200, {})
        return Answer(200, self._api.log()) if (method, what) == ("GET", "log") else Answer(404, {"error": what})


async def _no_pause(_ms: float | None) -> None:
    raise AssertionError("nothing here waits in the middle of an answer")


async def main() -> None:
    """Serve until abandoned."""
    server = BotServer()
    listening = await asyncio.get_running_loop().create_server(lambda: Wire(server.serve), HOST, 0, backlog=1024)
    port = listening.sockets[0].getsockname()[1]
    print(json.dumps({"port": port, "control_port": port, "pid": os.getpid()}), flush=True)
    await until_abandoned()


if __name__ == "__main__":
    asyncio.run(main())
