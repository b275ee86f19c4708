from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LOADED = "import sys, perdure; print([m for m in ('pydantic_ai', 'openai', 'httpx2', 'griffe', 'ray', 'duckdb') if m in sys.modules])"


def test_a_host_without_a_chat_agent_loads_no_library_of_a_provider() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("[]", "['duckdb']")  # storage may be loaded already
