"""A question that is declared here alone, and asked in every way; prints what was answered. Run as a program: what is derived from the
questions is loaded after it."""

# ruff: noqa: E402 - see above

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from perdure.actors.link import questions
from perdure.actors.link.questions import Books, OverHttp, QuestionOf, Questions, asked
from perdure.ledger import BadRequest


class Counted(TypedDict):
    """How many runs there are."""

    of: str
    runs: int


@OverHttp("count_runs", "/api/counts/{of}", Counted, within="runs")
class CountRuns(NamedTuple):
    """How many runs are in memory."""

    of: Annotated[str, "Their type."]
    at_least: Annotated[int, "So many are told in any case."] = 0

    def __call__(self, books: Books) -> int:
        found = sum(run.agent_type.endswith(self.of) for run in books.view.runs.values())
        return max(self.at_least, found)


questions.QUESTIONS["count"] = CountRuns  # type: ignore[assignment]
questions.Query |= CountRuns

import httpx
import pytest

from perdure.actors.remote.remote_client import AsyncGateway
from perdure.actors.remote.remote_requests import RemoteRequest
from perdure.ledger.facts import RunRequested
from perdure.scenarios.commands.opening import ColdLedger
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.cast import Walker
from tests.gateway.door import Door
from tests.gateway.world import visit
from tests.ledger.directories import recorded


class Counting(Questions):
    @asked
    def count(self, of: str, at_least: int = 0) -> QuestionOf[int]:
        return CountRuns(of, at_least)


class CountingGateway(AsyncGateway, Counting):
    """A gateway with a method for it."""


class DoorWire:
    """The wire of a remote client that ends at a door."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def request(self, request: RemoteRequest[object]) -> httpx.Response:
        made = httpx.Request(request.method, f"http://door{request.path}", params=request.http["params"])
        answer = await self._door.ask(request.method, made.url.raw_path.decode())
        return httpx.Response(answer.status, content=answer.body)


async def _story(door: Door, laboratory: Laboratory) -> dict[str, Any]:
    client = laboratory._client  # noqa: SLF001 - the story's own
    assert client is not None
    await client.run(Walker, 0, run_id="one")
    gateway = CountingGateway(DoorWire(door))  # type: ignore[arg-type]
    described = (await door.get("/api/openapi.json")).json()
    refused = await door.get("/api/counts/Walker?at_least=many")
    with pytest.raises(BadRequest) as unasked:
        await gateway.ask("kept", [])
    return {
        "runtime": [await client.ask("count", "Walker"), await client.ask("count", "Walker", 5)],
        "rest": [(await door.get(f"/api/counts/Walker{more}")).json() for more in ("", "?at_least=5")],
        "remote": [await gateway.ask("count", "Walker"), await gateway.ask("count", "Walker", 5)],
        "method": [await gateway.count("Walker"), await gateway.count("Walker", at_least=5)],
        "described": described["paths"]["/api/counts/{of}"]["get"],
        "schema": described["components"]["schemas"]["Counted"],
        "refused": [refused.status, refused.json()["error"]["field"]],
        "unasked": str(unasked.value),
    }


if __name__ == "__main__":
    told = visit([Walker], _story)
    data = Path(sys.argv[1])
    recorded(data, RunRequested("one", "m:Walker", "", "", "digest", b"\x01", {}, 0))
    with ColdLedger(data) as ledger:
        told["cold"] = [ledger.ask("count", "Walker"), ledger.ask("count", "Walker", 5)]
    sys.stdout.write(json.dumps(told))
