"""Ids with slashes in paths: what is encoded is within an id, whatever it ends in."""

from __future__ import annotations

from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

import perdure
from perdure.actors import Agent, exposed
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door
from tests.gateway.world import visit, visiting

IDS = ["a", "a/events", "a/explain", "a/at-stake", "a/cancel", "a/b", "a%2Fevents", "a/./b", "ü/events", "bulk"]


class Worker(Agent):
    """Runs, and has an exposed method."""

    stands_alone = True

    async def run(self) -> str:
        """At once."""
        return "done"

    @exposed
    def named(self) -> str:
        """Its name."""
        return self.name


@visiting(Worker)
async def test_a_run_is_found_by_its_id_whatever_that_ends_in(door: Door, laboratory: Laboratory, /) -> None:
    under = Door(Starlette(routes=[Mount("/below", door.app)]))
    for run_id in IDS:
        assert (await door.post("/api/runs", {"type": "worker", "run_id": run_id})).status == 200
        assert b"done" in (await door.get(f"/api/runs/{quote(run_id, safe='')}/events")).body
    for run_id in IDS:
        path = f"/api/runs/{quote(run_id, safe='')}"
        for at, where in ((path, door), (path.replace("%2F", "%2f"), door), (f"/below{path}", under)):
            assert (await where.get(at)).json()["run_id"] == run_id
            assert (await where.get(f"{at}/explain")).json()["lines"]
            assert "runs" in (await where.get(f"{at}/at-stake")).json()
            assert b"done" in (await where.get(f"{at}/events")).body
    assert (await door.get("/api/runs/a/b")).json()["run_id"] == "a/b"
    assert "lines" in (await door.get("/api/runs/a/b/explain")).json()
    assert (await door.ask("DELETE", "/api/runs/a%2Fevents")).json() == {"cleared": 1}
    assert (await door.get("/api/runs/a")).json()["run_id"] == "a"


@visiting(Worker)
async def test_ids_of_agents_and_of_questions_are_read_in_the_same_way(door: Door, laboratory: Laboratory, /) -> None:
    for name in ("x/steer", "x/call/named", "x/at-stake"):
        called = f"/api/agents/worker/{quote(name, safe='')}/call/named"
        assert (await door.post(called, {})).json() == {"value": name}
        address = quote(f"{name}@{Worker.__module__}:Worker", safe="")
        assert (await door.get(f"/api/agents/{address}")).json()["agent"].startswith(f"{name}@")
    assert (await door.post("/api/agents/worker%2Fx/call/named", {})).json() == {"value": "x"}
    unknown = await door.get("/api/asks/q%2Fanswer")
    assert "'q/answer'" in unknown.json()["error"]["message"]


@visiting(Worker)
async def test_a_path_that_was_rewritten_on_its_way_is_read_as_it_is(door: Door, laboratory: Laboratory, /) -> None:
    inner: ASGIApp = door.app

    async def rewriting(scope: Scope, receive: Receive, send: Send) -> None:
        await inner({**scope, "path": "/api/overview"}, receive, send)

    assert "runs" in (await Door(rewriting).get("/old%2Fpath")).json()


@pytest.mark.parametrize("name", [".", "..", ""])
def test_what_would_be_taken_out_of_a_path_is_refused_as_an_id(name: str) -> None:
    async def story(door: Door, _: Laboratory) -> None:
        answer = await door.post("/api/runs", {"type": "worker", "run_id": name})
        assert (answer.status, answer.json()["error"]["field"]) == (400, "run_id")

    visit([Worker], story)
    with perdure.connect("http://127.0.0.1:9") as remote:
        for hand_over, field in (
            (lambda: remote.agent("counter", name), "name"),
            (lambda: remote.show(name), "run_id"),
            (lambda: next(remote.events(name)), "run_id"),
            (lambda: remote.chat("waiter", name), "name"),
            (lambda: remote.answer(name, value=1), "ask_id"),
            (lambda: remote.explain(name), "run_id"),
        ):
            with pytest.raises(perdure.BadRequest) as refused:
                hand_over()
            assert refused.value.field == field
        assert str(httpx.URL("http://h/api/runs/.")) == "http://h/api/runs", "as clients do"
