"""A simulated Telegram Bot API behind real HTTP: `/bot<token>/<method>`.

with SocketTelegram() as telegram:
    bot = Telegram("1:token", secret_token="…", base_url=telegram.base_url)
    telegram.plan([BotFault(method="sendMessage", kind="silent")])
    …
    telegram.log()
"""

from __future__ import annotations

import asyncio
import time
from typing import Self
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from perdure.scenarios.provider.sockets import HOST, Sockets, gone, reset
from perdure.scenarios.telegram.bot_api import BotApi


class SocketTelegram(BotApi):
    """A simulated Telegram on a port of this machine while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self._sockets = Sockets(self._serve)

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self._sockets.port}/bot"

    def __enter__(self) -> Self:
        self._sockets.__enter__()
        return self

    def __exit__(self, *trouble: object) -> None:
        self._sockets.__exit__(*trouble)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A request that goes unanswered is reset.
        request = Request(scope, receive)
        given = dict(parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True))
        method = request.url.path.removeprefix("/bot").partition("/")[2]
        answer = self.receive(method, given, round(time.time() * 1000))
        await asyncio.sleep(answer.after_s)
        if answer.status is None:
            await reset(scope)
            await gone(receive)
        else:
            await JSONResponse(answer.body, answer.status)(scope, receive, send)
