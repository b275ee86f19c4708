"""The official MCP client over stdio, with a server that is killed between two calls; and what `perdure mcp` refuses."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from perdure.actors import Agent, exposed, offers_of
from perdure.ledger import BadRequest
from perdure.scenarios.commands.serve import mcp
from tests.gateway.cast import Counter
from tests.gateway.mcp_cast import Importer
from tests.gateway.real import ROOT


def server(data: Path) -> StdioServerParameters:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / ".src"), str(ROOT)])}
    given = ["-m", "tests.gateway.mcp_stdio_server", str(data)]
    return StdioServerParameters(command=sys.executable, args=given, env=dict(environment), cwd=ROOT)


@pytest.mark.thorough
async def test_a_server_over_stdio_that_is_killed_goes_on_with_its_runs(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    asked: dict[str, Any] = {"tool": "importer", "arguments": {"rows": 4, "gate": str(gate)}, "idempotency_key": "k"}
    async with asyncio.timeout(120):
        async with Client(server(tmp_path)) as first:
            assert "importer" in [each.name for each in (await first.list_tools()).tools]
            begun = await first.call_tool("start_run", asked)
            assert begun.structured_content is not None
            os.kill(int((tmp_path / "pid").read_text("utf-8")), signal.SIGKILL)
            with pytest.raises(MCPError):
                await first.call_tool("start_run", asked)
        gate.touch()
        async with Client(server(tmp_path)) as second:
            again = await second.call_tool("start_run", asked)
            assert again.structured_content is not None
            assert again.structured_content["run"] == begun.structured_content["run"]
            while True:
                found = await second.call_tool("get_run", {"run": begun.structured_content["run"]})
                assert found.structured_content is not None
                if found.structured_content["status"] == "completed":
                    break
                await asyncio.sleep(0.05)
            assert found.structured_content["output"]["rows"] == 4


def test_a_server_over_stdio_ends_at_ctrl_c_while_its_client_is_silent(tmp_path: Path) -> None:
    given = server(tmp_path)
    process = subprocess.Popen(
        [given.command, *given.args],
        env=given.env,
        cwd=given.cwd,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stdin
        assert process.stdout
        about = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
        said = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}
        process.stdin.write(json.dumps(said).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["id"] == 1
        process.send_signal(signal.SIGINT)
        process.wait(60)
    finally:
        process.kill()
        process.communicate()


def test_what_stands_on_standard_input_is_told_line_by_line() -> None:
    long = b"x" * 200_000
    program = "import asyncio, sys; from perdure.actors.mcp_server.transports import StdinLines\n"
    program += "async def main():\n  async for line in StdinLines(): print(len(line), repr(line[-2:]))\n"
    program += "  print(repr(sys.stdin.read()))\nasyncio.run(main())"
    environment = os.environ | {"PYTHONPATH": str(ROOT / ".src")}
    command = [sys.executable, "-c", program]
    said = subprocess.run(
        command, input=b"a\n\n" + long + b"\n\xff\nend", env=environment, capture_output=True, check=True, timeout=60
    )
    assert said.stdout.decode().splitlines() == [
        "2 'a\\n'", "1 '\\n'", "200001 'x\\n'", "2 '\ufffd\\n'", "3 'nd'", "''",
    ]  # fmt: skip


class Adrift:
    """Is no agent, and says that its method is exposed."""

    @exposed
    def add(self, amount: int) -> int:
        """Add an amount."""
        return amount


class Unnamed(Agent):
    """Its methods cannot be tools."""

    @exposed
    def ask(self, agent: str) -> str:
        """A parameter has the name by which a tool is told its agent."""
        return agent

    def hidden(self) -> None:
        """Is not exposed."""


START = type("StartRun", (Importer,), {})


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ([Importer, Importer], "two tools would be named 'importer'"),
        ([START], "two tools would be named 'start_run'"),
        ([print], "neither a class of agents nor an exposed method"),
        ([Adrift.add], "neither a class of agents nor an exposed method"),
        ([Unnamed.hidden], "neither a class of agents nor an exposed method"),
        ([Unnamed.ask], "has a parameter 'agent', which names the agent"),
        ([Counter], "no class of agents with a `run`"),
        ([dict], "no class of agents with a `run`"),
    ],
)
def test_what_can_be_no_tool_is_refused(choices: list[Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        offers_of(choices)


def test_a_target_without_a_tool_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(BadRequest, match="no tool to offer"):
        mcp(["tests.gateway.cast:Counter"])
