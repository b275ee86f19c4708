"""The scripted provider behind real sockets: `POST …/chat/completions` with server-sent events, and faults on demand.

with SocketProvider(script) as provider:
    client = AsyncOpenAI(base_url=provider.base_url, api_key="scripted", max_retries=0)
    provider.set_plan(FaultPlan.at({2: Fault(kind=FaultKind.RESET, event=3)}))
    …
    assert provider.counters().illegal == 0
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from perdure.scenarios.provider.events import error_of
from perdure.scenarios.provider.faults import Act, End, FaultPlan, Pace, ResponseHead, Said, SilentFor
from perdure.scenarios.provider.script import Script
from perdure.scenarios.provider.scripted import ScriptedProvider, unknown_path
from perdure.scenarios.provider.sockets import HOST, Sockets, gone, hang_up, reset

CUTS = {"reset": reset, "hang_up": hang_up}


def wall_ms() -> float:
    # The same for every process.
    return time.time() * 1000


class SocketProvider(ScriptedProvider):
    """A provider on a port of this machine while it is entered. `changed` is notified of everything that happens."""

    def __init__(self, script: Script | None = None, plan: FaultPlan | None = None, pace: Pace | None = None) -> None:
        super().__init__(script, plan, pace)
        self.changed = threading.Condition()
        self._sockets = Sockets(self._serve, self.connected)
        self._stalls: dict[int, asyncio.Future[None]] = {}
        self._sent: Counter[int] = Counter()  # bytes of the body of each open reply

    @property
    def base_url(self) -> str:
        return f"http://{HOST}:{self._sockets.port}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which `model = "openai-chat:scripted"` reaches this provider."""
        return {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": "scripted"}

    def __enter__(self) -> Self:
        self._sockets.__enter__()
        self._sockets.do(self._open())
        return self

    def __exit__(self, *trouble: object) -> None:
        self._sockets.__exit__(*trouble)

    # what a story asks, on its own thread

    def set_plan(self, plan: FaultPlan) -> None:
        self._sockets.do(self._turned(lambda: super(SocketProvider, self).set_plan(plan)))

    def open_door(self) -> None:
        self._sockets.do(self._turned(super().open_door))

    def release(self, number: int) -> None:
        """End the stall of a request. Raises `KeyError` if it does not stall."""
        self._sockets.do(self._turned(lambda: self._stalls.pop(number).set_result(None)))

    # what happens on the thread of the sockets

    async def _open(self) -> None:
        self._look = asyncio.Event()
        self._minding = asyncio.ensure_future(self._mind_the_door())
        await self._turn_the_door()

    async def _turned(self, job: Callable[[], None]) -> None:
        job()
        await self._turn_the_door()

    def settle(self) -> None:
        self._look.set()
        with self.changed:
            self.changed.notify_all()

    async def _mind_the_door(self) -> None:
        while True:
            await self._turn_the_door()
            self._look.clear()
            until_ms = self.shut_until_ms()
            with suppress(TimeoutError):
                async with asyncio.timeout(None if until_ms is None else max(0.0, until_ms - wall_ms()) / 1000):
                    await self._look.wait()

    async def _turn_the_door(self) -> None:
        await self._sockets.turn(is_open=not self.is_shut(wall_ms()))

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        told = unknown_path(request.method, request.url.path)
        if told is not None:
            await JSONResponse({"error": error_of(told)}, 404)(scope, receive, send)
            return
        with suppress(ClientDisconnect):
            await self._chat(await request.body(), scope, receive, send)

    async def _chat(self, body: bytes, scope: Scope, receive: Receive, send: Send) -> None:
        number, acts = self.receive(body, wall_ms())
        await self._turn_the_door()  # before the answer, so that a client that has it finds the port as the plan says
        speaking = asyncio.ensure_future(self._carry_out(number, acts, scope, send))
        leaving = asyncio.ensure_future(gone(receive))
        try:
            done, _ = await asyncio.wait({speaking, leaving}, return_when=asyncio.FIRST_COMPLETED)
            how = speaking.result() if speaking in done else "gone"
            self.ended(number, how, self._sent.pop(number, 0), wall_ms())
            if how in CUTS:
                await leaving
        finally:
            speaking.cancel()
            leaving.cancel()

    async def _carry_out(self, number: int, acts: tuple[Act, ...], scope: Scope, send: Send) -> str:
        for act in acts:
            match act:
                case ResponseHead(status, headers):
                    lines = [(name.encode(), value.encode()) for name, value in headers]
                    await send({"type": "http.response.start", "status": status, "headers": lines})
                case Said(body):
                    self._sent[number] += len(body)
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                case SilentFor(ms) if ms is not None:
                    await asyncio.sleep(ms / 1000)
                case SilentFor():
                    await self._stalls.setdefault(number, asyncio.get_running_loop().create_future())
                case End(how) if how in CUTS:
                    await CUTS[how](scope)
                    return how
                case End(how):
                    await send({"type": "http.response.body"})
                    return how
        raise AssertionError("acts without an end")
