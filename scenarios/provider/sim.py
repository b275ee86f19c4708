"""The scripted provider as an `httpx2` transport in the simulated world: the same script and acts, and virtual time.

    provider = SimProvider(script, plan)
    agent.model = provider.model()

It has the methods of `SocketProvider`, so one story can play with either. A stall is a timer of the virtual loop, or lasts for ever. Where
a socket would make the client raise, the same is raised here. The provider lives outside of every simulated process, as a real one does,
so its log survives every death. A client that dies with its process leaves at that moment.

Connections are counted as if none were kept alive: one for each request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import httpx2

from perdure.actors.sim_world.simulation import current_process, on_death
from perdure.scenarios.provider.faults import Act, End, FaultPlan, Pace, ResponseHead, Said, SilentFor, refusal
from perdure.scenarios.provider.script import Script
from perdure.scenarios.provider.scripted import ScriptedProvider, unknown_path

if TYPE_CHECKING:
    from pydantic_ai.models.openai import OpenAIChatModel

SIM_URL: Final = "http://provider.invalid/v1"

HUNG_UP_EARLY: Final = "Server disconnected without sending a response."
HUNG_UP: Final = "peer closed connection without sending complete message body (incomplete chunked read)"
REFUSED: Final = "All connection attempts failed"


class SimProvider(ScriptedProvider, httpx2.AsyncBaseTransport):
    """Any number of clients may share it."""

    def __init__(self, script: Script | None = None, plan: FaultPlan | None = None, pace: Pace | None = None) -> None:
        super().__init__(script, plan, pace)
        self._exchanges: dict[int, _Exchange] = {}

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=self, trust_env=False)

    def model(self, name: str = "scripted") -> OpenAIChatModel:
        from openai import AsyncOpenAI  # noqa: PLC0415 - takes half a second, and not all that have a provider have a model
        from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415 - as above
        from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415 - as above

        client = AsyncOpenAI(base_url=SIM_URL, api_key="scripted", max_retries=0, http_client=self.client())
        return OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))

    def release(self, number: int) -> None:
        """End the stall of a request. Raises `KeyError` if the request is not open."""
        self._exchanges[number].release()

    # what a client does to it

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        now_ms = asyncio.get_running_loop().time() * 1000
        if self.is_shut(now_ms):
            self.refused += 1
            raise httpx2.ConnectError(REFUSED, request=request)
        self.connected()
        told = unknown_path(request.method, request.url.path)
        if told is not None:
            return await _Exchange(self, request, 0, refusal(404, told)).response()
        number, acts = self.receive(body, now_ms)
        exchange = self._exchanges[number] = _Exchange(self, request, number, acts)
        if current_process() is not None:
            on_death(exchange.leave)
        return await exchange.response()

    def ended(self, number: int, how: str, sent: int, at_ms: float) -> None:
        if self._exchanges.pop(number, None) is not None:
            super().ended(number, how, sent, at_ms)

    async def aclose(self) -> None:
        """Do nothing: other clients go on."""


# It is the body of its response.
class _Exchange(httpx2.AsyncByteStream):
    def __init__(self, provider: SimProvider, request: httpx2.Request, number: int, acts: tuple[Act, ...]) -> None:
        self._provider, self._request, self._number = provider, request, number
        self._acts = iter(acts)
        self._loop = asyncio.get_running_loop()  # kept, because an exchange may also end when no loop runs
        self._sent = 0
        self._silent_s = 0.0
        self._patience_s: float | None = request.extensions.get("timeout", {}).get("read")
        self._interruption: asyncio.Future[None] | None = None
        self._is_silent = self._has_head = False

    async def response(self) -> httpx2.Response:
        try:
            while True:
                act = await self._next()
                if isinstance(act, ResponseHead):
                    self._has_head = True
                    return httpx2.Response(
                        act.status,
                        headers=list(act.headers),
                        stream=self,
                        request=self._request,
                        extensions={"http_version": b"HTTP/1.1"},
                    )
        except BaseException:
            self.leave()
            raise

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            while True:
                act = await self._next()
                if isinstance(act, End):
                    return
                if isinstance(act, Said):
                    self._sent += len(act.body)
                    yield act.body
        finally:
            self.leave()

    async def aclose(self) -> None:
        # A read that is under way breaks off, as that of a closed socket does.
        self.leave()
        if self._interruption is not None and not self._interruption.done():
            self._interruption.set_exception(httpx2.ReadError("", request=self._request))

    async def _next(self) -> Act:
        # Sending is left to the caller.
        act = next(self._acts)
        if isinstance(act, SilentFor):
            await self._wait(act.ms)
        else:
            self._silent_s = 0.0
        if isinstance(act, End):
            self._end(act.how)
            if act.how == "reset":
                raise httpx2.ReadError("", request=self._request)
            if act.how == "hang_up":
                raise httpx2.RemoteProtocolError(HUNG_UP if self._has_head else HUNG_UP_EARLY, request=self._request)
        return act

    async def _wait(self, ms: float | None) -> None:
        """Be silent for so long or until released, but no longer than the client's timeout of a read."""
        limit_s = None if ms is None else ms / 1000
        left_s = None if self._patience_s is None else max(0.0, self._patience_s - self._silent_s)
        is_too_long = left_s is not None and (limit_s is None or left_s < limit_s)
        self._interruption = self._loop.create_future()
        self._is_silent = True  # for `leave`
        try:
            async with asyncio.timeout(left_s if is_too_long else limit_s):
                await self._interruption
        except TimeoutError:
            if is_too_long:
                raise httpx2.ReadTimeout("", request=self._request) from None
        finally:
            self._interruption = None
        self._is_silent = False
        self._silent_s += limit_s or 0.0

    def _end(self, how: str) -> None:
        self._provider.ended(self._number, how, self._sent, self._loop.time() * 1000)

    def release(self) -> None:
        if self._interruption is not None and not self._interruption.done():
            self._interruption.set_result(None)

    def leave(self) -> None:
        # What the provider says before its next pause is already sent.
        how = "gone"
        for act in () if self._is_silent else self._acts:
            if isinstance(act, SilentFor):
                break
            if isinstance(act, End):
                how = act.how
            self._sent += len(act.body) if isinstance(act, Said) else 0
        self._end(how)
