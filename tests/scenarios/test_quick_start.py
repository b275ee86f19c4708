"""Nobody waits for what is not used: a command, and a script, bring only that into their process which they need."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import actors
from perdure.scenarios.cli import Commands, Scenarios
from perdure.scenarios.commands.catalog import CATALOG
from tests.tidy import IMPORT_PATH

# Typer itself brings pydantic as soon as it reads an option.
HEAVY = (
    "perdure.actors.chat.chat_agent duckdb fastapi httpx pydantic_ai ray rich starlette telegram typer uvicorn".split()
)
ASK = "import sys; print(*[name for name in {!r}.split() if name in sys.modules])"
HELP = (
    "import sys; sys.argv = ['perdure', *'{}'.split()]; from contextlib import suppress; from perdure.cli import main\n"
)


def loaded(code: str, directory: Path) -> set[str]:
    """Which heavy modules a fresh process has after this code."""
    command = [sys.executable, "-c", f"{code}\n{ASK.format(' '.join(HEAVY))}"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": IMPORT_PATH, "HOME": str(directory)}
    done = subprocess.run(command, env=environment, cwd=directory, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        ("--help", {"typer"}),
        ("run --help", {"typer"}),
        ("doctor", {"typer", "duckdb", "rich"}),
        ("ps", {"typer", "duckdb", "rich"}),
    ],
)
def test_a_command_loads_what_it_needs(words: str, needed: set[str], tmp_path: Path) -> None:
    (tmp_path / "perdure-data").mkdir()
    assert loaded(HELP.format(words) + "with suppress(SystemExit): main()", tmp_path) <= needed


def test_a_script_with_agents_loads_no_ray_before_a_runtime_is_opened_and_no_model_before_it_is_asked(
    tmp_path: Path,
) -> None:
    script = "from perdure import Agent, ChatAgent, RunContext, exposed, tool"
    assert not loaded(script, tmp_path) & {"pydantic_ai", "telegram", "starlette", "uvicorn", "rich", "typer", "ray"}


@pytest.mark.parametrize(("given", "brings_ray"), [("opener=lambda: None", False), ("", True)])
def test_a_gateway_brings_ray_only_if_it_is_to_open_a_cluster(given: str, brings_ray: bool, tmp_path: Path) -> None:
    script = f"from perdure import Agent; from perdure.gateway import Gateway\nclass Idle(Agent): ...\nGateway([Idle], data='d', {given})"
    assert ("ray" in loaded(script, tmp_path)) == brings_ray


def test_a_scripted_provider_brings_a_model_only_if_it_is_asked_for_one(tmp_path: Path) -> None:
    script = "from perdure.scenarios.provider.sim import SimProvider\nprovider = SimProvider()"
    assert "pydantic_ai" not in loaded(script, tmp_path)
    assert "pydantic_ai" in loaded(f"{script}\nprovider.model()", tmp_path)


def test_whatever_is_named_at_the_door_is_there() -> None:
    imports = [
        node for node in ast.walk(ast.parse(Path(actors.__file__).read_bytes())) if isinstance(node, ast.ImportFrom)
    ]
    named = {alias.name for node in imports for alias in node.names}
    assert [name for name in named if getattr(actors, name, None) is None] == []
    assert named <= set(dir(actors))
    with pytest.raises(AttributeError, match="no attribute 'Nobody'"):
        actors.Nobody  # noqa: B018 - that it raises is what is tried


def test_every_command_is_where_the_table_says() -> None:
    for name, entry in {**Commands.entries, **Scenarios.entries}.items():
        assert entry.taken(name).name == name
    assert list(Scenarios.entries) == [scenario.name for scenario in CATALOG]
