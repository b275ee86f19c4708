"""A client of MCP at `perdure serve`: it cancels a call at one process of the gateway that another one has."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from tests.cluster.test_serve_ray import PATIENCE_S, Served

HEADERS = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
WHO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def rpc(method: str, **more: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "method": method, **more}


@pytest.mark.thorough
def test_a_call_is_cancelled_at_a_process_of_the_gateway_that_does_not_have_it(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", "tests.cluster.mcp_app:app", "--workers", "2")
    try:
        with ExitStack() as stack:
            lines: dict[int, httpx.Client] = {}
            until_s = time.monotonic() + PATIENCE_S
            while len(lines) < 2 and time.monotonic() < until_s:  # the kernel spreads connections over the processes
                line = stack.enter_context(served.client())
                with line.stream("GET", "/api/overview") as answer:
                    lines.setdefault(served.holder(answer), line)
                    answer.read()
            one, other = lines.values()
            begun = one.post("/mcp", json=rpc("initialize", id=1, params=WHO), headers=HEADERS)
            headers = HEADERS | {"mcp-session-id": begun.headers["mcp-session-id"]}
            call = rpc("tools/call", id=2, params={"name": "waiter", "arguments": {"input": 1}})
            with one.stream("POST", "/mcp", json=call, headers=headers) as answer:
                assert answer.status_code == 200
                while other.get("/api/overview").json()["runs"].get("running") != 1:
                    time.sleep(0.05)
                cancel = rpc("notifications/cancelled", params={"requestId": 2})
                assert other.post("/mcp", json=cancel, headers=headers).status_code == 202
                while other.get("/api/overview").json()["runs"].get("aborted") != 1:
                    assert time.monotonic() < until_s, "the run goes on"
                    time.sleep(0.05)
    finally:
        served.stop()
