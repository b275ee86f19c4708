"""Tools of an MCP server on a real Ray: a call whose host is killed is not made again, and the next one finds the server."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from fastmcp.client.transports import StdioTransport
from pydantic_ai.mcp import MCPToolset
from pydantic_ai.messages import ModelMessage, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from perdure.actors import ChatAgent, Runtime
from perdure.policies import Limits

pytestmark = [pytest.mark.shared_ray, pytest.mark.long]

PATIENCE_MS = 120_000  # for a host to start: on a busy machine that takes more than the half minute of the default
SERVER = str(Path(__file__).with_name("mcp_server.py"))


async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[Any]:
    """Call what the newest message of the user names, `tool {json}`; then tell the result."""
    last = messages[-1].parts[-1]
    if isinstance(last, ToolReturnPart):
        yield f"{last.content}"
        return
    asked = next(
        part.content for each in reversed(messages) for part in reversed(each.parts) if isinstance(part, UserPromptPart)
    )
    name, _, given = str(asked).partition(" ")
    yield {0: DeltaToolCall(name=name, json_args=given, tool_call_id=f"call-{len(messages)}")}


class Notes(ChatAgent):
    """Keeps notes with the tools of a server that it starts."""

    model: ClassVar[Any] = FunctionModel(stream_function=answer)
    toolsets: ClassVar[Any] = [MCPToolset(StdioTransport(sys.executable, [SERVER]), id="notes", init_timeout=60)]


def test_a_call_whose_host_dies_is_not_made_again(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    with Runtime(tmp_path / "data", limits=Limits(start_timeout_ms=PATIENCE_MS)) as runtime:
        notes = runtime.agent(Notes, "notes")
        assert notes.chat(f'append {{"path": "{file}", "line": "first"}}').text == "appended first"
        asked = notes.submit_messages(f'append {{"path": "{file}", "line": "second", "seconds": 60}}')
        while file.read_text().count("\n") < 2:
            time.sleep(0.05)
        os.kill(int(file.read_text().split()[-1]), signal.SIGKILL)
        told = notes.attach(asked["request_id"])
        while told.status == "interrupted":
            told = notes.attach(asked["request_id"], first=told.next_event)
        assert "OUTCOME UNKNOWN" in told.text
        assert [line.split()[0] for line in file.read_text().splitlines()] == ["first", "second"]
        assert notes.chat(f'read {{"path": "{file}"}}').text == file.read_text()
