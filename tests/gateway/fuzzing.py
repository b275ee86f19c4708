"""Asks the operations of REST in ways that nobody thought of.

Apart from the tests, since importing schemathesis costs each process that collects them a second.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.gateway.real import RealGateway, client

EXAMPLES = 6
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def fuzz(gateway: RealGateway, patience_s: int) -> Counter[int]:
    """Ask each operation, rightly and wrongly, and check what is answered. Returns how often each status was."""
    told: Counter[int] = Counter()
    for operation in operations(gateway):
        for mode in GenerationMode:
            with suppress(Unsatisfiable):  # an operation that takes nothing cannot be asked wrongly
                _ask(operation.as_strategy(mode), told, patience_s)
    return told


def operations(gateway: RealGateway) -> Iterator[Any]:
    """Those that end: the streams of events are asked by tests of their own."""
    with client(gateway) as asked:
        described = asked.get("/api/openapi.json").json()
    schema = schemathesis.openapi.from_dict(described)
    schema.config.base_url = gateway.url
    for found in schema.get_all_operations():
        operation = found.ok()
        if "text/event-stream" not in json.dumps(operation.definition.raw["responses"]["200"]):
            yield operation


def _ask(cases: Any, told: Counter[int], patience_s: int) -> None:
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def ask(case: Any) -> None:
        answer = case.call(timeout=patience_s)
        told[answer.status_code] += 1
        case.validate_response(answer, checks=CHECKS)

    ask()
