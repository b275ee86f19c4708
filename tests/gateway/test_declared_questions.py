"""A question is declared once, and asked in every way."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.tidy import ROOT


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `declared_question` tells."""
    command = [sys.executable, "-m", "tests.gateway.declared_question", str(tmp_path_factory.mktemp("data"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_is_declared_as_a_question_is_asked_by_each_client_over_rest_and_of_a_cold_directory(told: Any) -> None:
    assert told["runtime"] == told["remote"] == told["method"] == told["cold"] == [1, 5]
    assert told["rest"] == [{"of": "Walker", "runs": 1}, {"of": "Walker", "runs": 5}]


def test_its_declaration_says_what_is_refused_over_rest_and_describes_it(told: Any) -> None:
    assert told["refused"] == [400, "at_least"]
    described = told["described"]
    assert (described["operationId"], described["summary"]) == ("count_runs", "How many runs are in memory.")
    assert [(each["name"], each["in"], each["description"], each["required"]) for each in described["parameters"]] == [
        ("of", "path", "Their type.", True),
        ("at_least", "query", "So many are told in any case.", False),
    ]
    assert (told["schema"]["description"], told["schema"]["required"]) == ("How many runs there are.", ["of", "runs"])


def test_a_question_that_is_not_declared_for_http_is_refused_by_its_name(told: Any) -> None:
    assert told["unasked"] == "question: 'kept' is not one that a gateway is asked by its name; see its methods"
