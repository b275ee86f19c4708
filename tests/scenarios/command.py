"""The command `perdure`, as it is given in a test."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from perdure.scenarios.cli import app


def perdure(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def perdure_json(*words: object) -> Any:
    done = perdure(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)
