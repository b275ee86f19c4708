"""Values as JSON for anybody: what a method answers and what a run returns are told by one rule, and none is lost."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, Field

from perdure.actors import Agent, exposed
from perdure.actors.gateway.plain_json import json_bytes
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door
from tests.gateway.world import visiting

AT = datetime(2026, 1, 1)  # noqa: DTZ001 - it travels as it is
VALUES: list[tuple[Any, Any]] = [
    (float("nan"), None),
    ({"a": [float("-inf")]}, {"a": [None]}),
    (b"\xff\x00", "/wA="),
    ({"a": [bytearray(b"\xff\x00"), {b"\xff\x00"}, deque([b"\xff\x00"])]}, {"a": ["/wA=", ["/wA="], ["/wA="]]}),
    ({(1, 2): "x", AT: 1, b"\xff\x00": 2}, {"(1, 2)": "x", "2026-01-01T00:00:00": 1, "/wA=": 2}),
    ({1: "a", "1": "b"}, {"1": "a", "1 (str)": "b"}),
    ([{"a": ({1: "a", "1": "b"},)}], [{"a": [{"1": "a", "1 (str)": "b"}]}]),
    ({True: 1, None: 2, 1.5: 3}, {"true": 1, "null": 2, "1.5": 3}),
    ({True: 1, None: 2, float("nan"): 3}, {"true": 1, "null": 2, "nan": 3}),
    ([AT, timedelta(seconds=1.5), Decimal("1.10"), UUID(int=5), Path("/a"), 1 + 2j, 2**70, (1, {2})],
     ["2026-01-01T00:00:00", "PT1.5S", "1.10", str(UUID(int=5)), "/a", "1+2j", 2**70, [1, [2]]]),
]  # fmt: skip


class Shower(Agent):
    """Gives one of the values."""

    stands_alone = True

    async def run(self, input: int) -> Any:
        """As its output."""
        return VALUES[input][0]

    @exposed
    def show(self, which: int) -> Any:
        """As an answer."""
        return VALUES[which][0]


@visiting(Shower)
async def test_a_value_is_the_same_as_the_answer_of_a_method_and_as_the_output_of_a_run(
    door: Door, laboratory: Laboratory, /
) -> None:
    for which, (_, wanted) in enumerate(VALUES):
        answer = await door.post("/api/agents/shower/one/call/show", {"args": [which]})
        assert answer.json(), which
        begun = {"type": "shower", "input": which, "run_id": str(which)}
        assert (await door.post("/api/runs", begun)).status == 200
        while (told := await door.get(f"/api/runs/{which}")).json()["status"] in ("starting", "running"):
            await asyncio.sleep(0.1)
        assert (answer.json()["value"], told.json()["output"]) == (wanted, wanted)
        for body in (answer.body, told.body):
            json.loads(body, object_pairs_hook=each_once)


def each_once(pairs: list[tuple[str, Any]]) -> None:
    """No object has two equal keys."""
    assert len(dict(pairs)) == len(pairs), pairs


class Model(BaseModel):
    """A model with bytes, and a name of its own for others."""

    data: bytes = Field(serialization_alias="bytes")


@dataclass
class Pair:
    """A dataclass with bytes."""

    left: bytes
    right: Model


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Model(data=b"text"), {"bytes": "text"}),
        ([Model(data=b"\xff\x00")], [{"bytes": "/wA="}]),
        ({1: Pair(b"\xff\x00", Model(data=b"\xff\x00"))}, {"1": {"left": "/wA=", "right": {"bytes": "/wA="}}}),
        (Pair, str(Pair)),
    ],
)
def test_bytes_of_a_model_are_told_though_they_are_no_text(value: object, wanted: object) -> None:
    assert json.loads(json_bytes(value)) == wanted
