"""Questions that runs ask people, over HTTP: one inbox, who may answer by their tokens, and what is told of a refusal."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest

from perdure.actors import Agent, RunContext
from perdure.actors.gateway.security import Principal, Scope, bearer
from perdure.actors.remote.remote_requests import Operations, RemoteRequest, error_of
from perdure.actors.rest import models
from perdure.ledger import AlreadyAnswered, BadRequest
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Answer, Door
from tests.gateway.test_live import told
from tests.gateway.test_rest_reading import client_of
from tests.gateway.world import visiting

CHATS = frozenset({Scope.READ, Scope.CHAT, Scope.OPERATE})
BY_TOKEN = bearer(
    {
        "a": Principal("ada", CHATS),
        "b": Principal("bob", CHATS, frozenset({"ops"})),
        "r": Principal("root"),
        "l": Principal("lea", frozenset({Scope.READ})),
    }
)


class Shipper(Agent):
    """Asks before it ships."""

    async def run(self, input: str, run: RunContext) -> list[Any]:
        to, may = (None, True) if input == "anybody" else ("ops", False)
        people = 2 if input == "twice" else 1
        answer = await run.ask("Ship to 40 customers?", to=to, args={"count": 40}, self_answer=may, people=people)
        return [answer.value, answer.who, answer.channel, answer.args]


def by(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def begun(door: Door, run_id: str, input: str = "ops", **headers: str) -> dict[str, Any]:
    """The question of a run that was begun over HTTP."""
    wish = {"type": "shipper", "input": input, "run_id": run_id}
    assert (await door.post("/api/runs", wish, headers=headers)).status == 200
    while True:
        found = (await door.get("/api/asks", headers=headers)).json()["asks"]
        if mine := [each for each in found if each["run_id"] == run_id]:
            return dict(mine[0])
        await asyncio.sleep(0.2)


async def answered(door: Door, ask_id: str, body: dict[str, Any], **headers: str) -> Answer:
    return await door.post(f"/api/asks/{quote(ask_id, safe='')}/answer", body, headers=headers)


async def output(laboratory: Laboratory, run_id: str) -> Any:
    client = await client_of(laboratory)
    return (await client.run(Shipper, "anybody" if "any" in run_id else "ops", run_id=run_id)).output


@visiting(Shipper)
async def test_one_inbox_is_listed_and_an_answer_closes_it_for_all(door: Door, laboratory: Laboratory, /) -> None:
    ask = await begun(door, "a/b")
    models.AskTold.model_validate(ask)
    assert (ask["ask_id"], ask["to"], ask["args"]) == ("a/b:1", ["ops"], {"count": 40})
    assert (await door.get("/api/asks?to=ops")).json()["asks"] == [ask]
    assert (await door.get("/api/asks?to=nobody")).json()["asks"] == []
    assert (await door.get("/api/asks/a%2Fb%3A1")).json() == ask
    said = {"value": True, "digest": ask["digest"], "args": {"count": 3}, "who": "ada", "channel": "dashboard"}
    first = await answered(door, "a/b:1", {**said, "answer_id": "mine"})
    assert (first.status, first.json()["status"]) == (200, "answered")
    assert (await answered(door, "a/b:1", {**said, "answer_id": "mine"})).status == 200
    again = await answered(door, "a/b:1", said)
    assert (again.status, again.json()["error"]["type"]) == (409, "AlreadyAnswered")
    assert "by ada (dashboard)" in again.json()["error"]["message"]
    assert isinstance(error_of(again.status, again.json()), AlreadyAnswered)
    assert (await door.get("/api/asks")).json()["asks"] == []
    assert [each["status"] for each in (await door.get("/api/asks?closed=true")).json()["asks"]] == ["answered"]
    assert await output(laboratory, "a/b") == [True, "ada", "dashboard", {"count": 3}]


@visiting(Shipper, gateway_options={"authenticate": BY_TOKEN})
async def test_who_may_answer_is_said_by_the_question_and_the_token(door: Door, laboratory: Laboratory, /) -> None:
    await begun(door, "r", **by("a"))
    for token, status in (("l", 403), ("a", 403)):
        refused = await answered(door, "r:1", {"value": True}, **by(token))
        assert refused.status == status
    assert refused.json()["error"]["type"] == "AnswerForbidden"
    pretended = await answered(door, "r:1", {"value": True, "who": "bob"}, **by("a"))
    assert (pretended.status, pretended.json()["error"]["field"]) == (400, "who")
    assert (await answered(door, "r:1", {"value": True}, **by("b"))).status == 200
    assert (await output(laboratory, "r"))[:3] == [True, "bob", "rest"]


@visiting(Shipper, gateway_options={"authenticate": BY_TOKEN})
async def test_whoever_began_a_run_answers_it_only_where_that_is_allowed(door: Door, laboratory: Laboratory, /) -> None:
    ask = await begun(door, "mine", **by("b"))
    assert ask["began_by"] == "bob"
    refused = await answered(door, "mine:1", {"value": True}, **by("b"))
    assert (refused.status, "bob began the run" in refused.json()["error"]["message"]) == (403, True)
    assert (await answered(door, "mine:1", {"value": False}, **by("r"))).status == 200
    await begun(door, "any", "anybody", **by("a"))
    assert (await answered(door, "any:1", {"value": True}, **by("a"))).status == 200


@pytest.mark.parametrize(
    ("ask_id", "body", "status", "field"),
    [
        ("r:9", {"value": True}, 404, "ask_id"),
        ("nobody:1", {"value": True}, 404, "ask_id"),
        ("r", {"value": True}, 404, "ask_id"),
        ("r:1", {"value": "maybe"}, 400, "value"),
        ("r:1", {"value": None}, 400, "value"),
        ("r:1", {}, 400, "value"),
        ("r:1", {"value": True, "digest": "another"}, 409, "digest"),
        ("r:1", {"value": True, "args": {"size": 1}}, 400, "args.size"),
        ("r:1", {"value": True, "args": []}, 400, "args"),
        ("r:1", {"value": True, "more": 1}, 400, "more"),
        ("r:1", {"value": True, "channel": "telepathy"}, 400, "channel"),
    ],
)
@visiting(Shipper)
async def test_an_answer_that_is_refused_names_the_field_and_the_run_hears_nothing(
    door: Door, laboratory: Laboratory, /, ask_id: str, body: dict[str, Any], status: int, field: str
) -> None:
    await begun(door, "r")
    refused = await answered(door, ask_id, body)
    assert (refused.status, refused.json()["error"]["field"]) == (status, field)
    assert isinstance(error_of(refused.status, refused.json()), BadRequest)
    assert [each["ask_id"] for each in (await door.get("/api/asks")).json()["asks"]] == ["r:1"]
    assert (await answered(door, "r:1", {"value": True})).status == 200


@visiting(Shipper, gateway_options={"authenticate": BY_TOKEN})
async def test_the_questions_of_one_run_or_agent_are_found_and_each_reader_is_told_whether_it_may_answer(
    door: Door, laboratory: Laboratory, /
) -> None:
    ask = await begun(door, "one", **by("b"))
    await begun(door, "two", "anybody", **by("a"))
    for asked_by in ("one", f"one@{ask['agent_type']}"):
        found = (await door.get(f"/api/asks?asked_by={quote(asked_by)}", headers=by("a"))).json()["asks"]
        assert [each["ask_id"] for each in found] == ["one:1"]
    assert (await door.get("/api/asks?asked_by=nobody", headers=by("a"))).json()["asks"] == []
    expected = {
        "a": ["ada is not asked; ops may answer", None],
        "b": ["bob began the run, and somebody else is to answer what it asks", None],
        "r": [None, None],
        "l": ["lea may only look, without the scope 'chat'"] * 2,
    }
    for token, refusals in expected.items():
        found = (await door.get("/api/asks", headers=by(token))).json()["asks"]
        assert [each["refusal"] for each in found] == refusals
        assert (await door.get("/api/asks/one%3A1", headers=by(token))).json()["refusal"] == refusals[0]
    assert (await answered(door, "one:1", {"value": False}, **by("r"))).json()["refusal"] is None
    assert (await answered(door, "two:1", {"value": False}, **by("r"))).status == 200


@visiting(Shipper)
async def test_how_many_are_open_is_told_with_a_mark_that_changes_with_any_of_them(
    door: Door, laboratory: Laboratory, /
) -> None:
    marks = list[str]()

    async def stand() -> int:
        now = (await door.get("/api/overview?live=0")).json()["asks"]
        marks.append(now["mark"])
        return int(now["open"])

    assert await stand() == 0
    await begun(door, "one", "twice")
    assert await stand() == 1
    assert await stand() == 1
    assert marks[1] == marks[2]
    await answered(door, "one:1", {"value": True, "who": "ada"})
    assert await stand() == 1
    await answered(door, "one:1", {"value": False, "who": "bob"})
    assert await stand() == 0
    assert len({*marks}) == 4, "none, one, one with an answer, and none again"
    async with door.stream("GET", "/api/live") as (_, pieces):
        events = told(pieces)
        await begun(door, "two")
        async for each in events:
            if each.name == "counts" and each.data["asks"]["open"]:
                break
        await answered(door, "two:1", {"value": True})
        async for each in events:
            if each.name == "counts" and not each.data["asks"]["open"]:
                return


class Noted(Operations):
    """A client that makes no request, and hands it back."""

    def _ask(self, request: RemoteRequest[Any]) -> RemoteRequest[Any]:
        return request


def test_the_python_client_asks_for_the_same() -> None:
    remote: Any = Noted()
    listed = remote.asks(to="ops")
    assert (listed.path, listed.query) == ("/api/asks", {"to": "ops", "closed": False, "limit": 1000})
    assert listed.told({"asks": [1]}) == [1]
    said = remote.answer("a/b:1", True, args={"count": 3}, who="ada")
    assert (said.method, said.path) == ("POST", "/api/asks/a%2Fb%3A1/answer")
    models.AnswerGiven.model_validate(said.body)
    assert (said.body["value"], said.body["args"], said.body["who"]) == (True, {"count": 3}, "ada")
    assert said.repeatable
