"""An MCP server of the official SDK, as a process: `python mcp_server.py [PORT]`, over stdio or streamable HTTP.

`append` writes a line to a file each time, so that a test sees how often it was executed, and by which host.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("notes", instructions="Keeps notes.")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def read(path: str) -> str:
    """Read a file."""
    return Path(path).read_text(encoding="utf-8")


@server.tool()
def append(path: str, line: str, seconds: float = 0) -> str:
    """Append a line, and take some time."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(f"{line} {os.getppid()}\n")
    time.sleep(seconds)
    return f"appended {line}"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def put(path: str, text: str) -> str:
    """Write a file."""
    Path(path).write_text(text, encoding="utf-8")
    return "put"


@server.tool()
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run(transport="streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run(transport="stdio")
