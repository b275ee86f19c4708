"""A line that ends before its request or its answer is whole: whose fault that is, and what the other side is told."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from perdure.actors.gateway.rate_limits import GatewayLimits
from perdure.actors.gateway.refusals import GatewayStopped
from perdure.actors.gateway.security import Security
from perdure.actors.remote.remote_requests import error_of
from perdure.actors.serve.guard import Guard
from perdure.ledger import OutcomeUnknown
from tests.gateway.test_serving import play, serving


def test_an_answer_that_takes_longer_than_the_drain_is_told_to_be_uncertain(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with (
            serving(drain_s=0.2) as place,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{place.port}") as client,
        ):
            late = asyncio.ensure_future(client.post("/late"))
            await place.site.asked.wait()
            place.server.should_exit = True
            answer = await late
            assert answer.status_code == 503
            problem = error_of(answer.status_code, answer.json())
            assert isinstance(problem, GatewayStopped)
            assert isinstance(problem, OutcomeUnknown)
            told = "the gateway was stopped before it answered POST /late, which may or may not have taken effect"
            assert str(problem) == answer.json()["error"]["message"] == told

    play(story)
    assert "Traceback" not in caplog.text


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_bug(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Request(scope, receive).body()

    async def story() -> None:
        heard: list[Any] = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"x", "more_body": True}]
        said: list[Any] = []

        async def hear() -> Any:
            return heard.pop()

        async def say(message: Any) -> None:
            said.append(message)

        scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"host", b"localhost")]}
        await Guard(app, Security(), GatewayLimits())(scope, hear, say)
        assert (heard, said) == ([], [])

    asyncio.run(story())
    assert not caplog.text
