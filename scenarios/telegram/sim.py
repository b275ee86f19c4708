"""The simulated Telegram in the simulated world, behind the same client library, in virtual time.

    telegram = SimTelegram()
    bot = Telegram("1:token", secret_token="…", wire=telegram.wire)

It lives outside of every simulated process, so messages outlive the process that posted them.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from telegram.error import NetworkError
from telegram.request import BaseRequest, RequestData

from perdure.scenarios.telegram.bot_api import BotApi

WAY_S: Final = 0.02  # there, and the same back


class SimTelegram(BotApi):
    """A Telegram for simulated clients."""

    def wire(self) -> BaseRequest:
        return SimWire(self)


class SimWire(BaseRequest):
    """The network of the client library."""

    def __init__(self, api: BotApi) -> None:
        self._api = api

    @property
    def read_timeout(self) -> float | None:
        # Nothing here hangs.
        return None

    async def initialize(self) -> None:
        """Nothing to open."""

    async def shutdown(self) -> None:
        """Nothing to close."""

    async def do_request(
        self, url: str, method: str, request_data: RequestData | None = None, *_rest: Any, **_more: Any
    ) -> tuple[int, bytes]:
        """One request. Raises what the library raises for a broken connection."""
        await asyncio.sleep(WAY_S)
        given = {} if request_data is None else request_data.json_parameters
        now_ms = round(asyncio.get_running_loop().time() * 1000)
        answer = self._api.receive(url.rpartition("/")[2], given, now_ms)
        await asyncio.sleep(WAY_S + answer.after_s)
        if answer.status is None:
            raise NetworkError("the connection broke")
        return answer.status, json.dumps(answer.body).encode()
