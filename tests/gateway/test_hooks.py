"""An author's hooks: one that cannot be called is refused when it is given, and what goes wrong in one is told as the author's."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

import pytest
from starlette.requests import HTTPConnection

from perdure.actors import Agent
from perdure.actors.gateway.refusals import Forbidden
from perdure.actors.gateway.security import Principal, Scope
from perdure.actors.serve.app import Gateway
from perdure.ledger import BadRequest
from tests.gateway.cast import Counter
from tests.gateway.test_security import at


class Directory:
    """Knows who may what."""

    def may(self, who: Principal, _kind: type[Agent], name: str) -> bool:
        return who.name == name

    async def may_soon(self, who: Principal, kind: type[Agent], name: str) -> bool:
        return self.may(who, kind, name)

    def __call__(self, who: Principal, kind: type[Agent], name: str) -> bool:
        return self.may(who, kind, name)


def too_few(_who: Principal, _name: str) -> bool:
    return True


def anybody(*_: object) -> bool:
    return True


def with_more(_who: Principal, _kind: type[Agent], _name: str, *, more: bool) -> bool:
    return more


async def nobody_at_all() -> None:
    return None


@pytest.mark.parametrize(
    "may", [Directory().may, Directory().may_soon, Directory(), partial(with_more, more=True), anybody, min]
)
def test_whatever_can_be_called_in_its_way_is_a_hook(may: Any) -> None:
    assert Gateway([Counter], may_address=may)


@pytest.mark.parametrize("may", [too_few, with_more, Directory.may, partial(too_few, 1), True, "may"])
def test_a_hook_that_cannot_be_called_is_refused_when_it_is_given_and_told_how_it_is_called(may: Any) -> None:
    with pytest.raises(BadRequest) as refused:
        Gateway([Counter], may_address=may)
    assert refused.value.field == "may_address"
    assert "it is called as may_address(who, agent_class, name), sync or async" in refused.value.problem
    with pytest.raises(
        BadRequest, match=r"authenticate: .*nobody_at_all\(\) -> 'None' does not fit .* authenticate\(connection\)"
    ):
        Gateway([Counter], authenticate=nobody_at_all)  # type: ignore[arg-type]


def test_help_tells_how_each_hook_is_called() -> None:
    told = str(Gateway.__doc__)
    assert "`authenticate(connection: HTTPConnection) -> Principal | None`" in told
    assert "`may_address(who: Principal, agent_class: type[Agent], name: str) -> bool`" in told


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("returned", [True, "ann", {"name": "ann"}, Principal])
def test_one_that_names_no_principal_is_told_to_the_log_by_its_name(
    returned: object, is_async: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def who_asks(_connection: HTTPConnection) -> Any:
        return returned

    async def who_asks_soon(_connection: HTTPConnection) -> Any:
        return returned

    async def story(door: Any) -> None:
        refused = await door.get("/api/runs")
        assert (refused.status, refused.json()["error"]) == (500, FAILED)
        async with door.socket("/agents/counter/a") as socket:
            assert await socket.receive() is None
            assert socket.closed == (1011, FAILED["message"])

    with caplog.at_level(logging.ERROR, "perdure.gateway"):
        at(story, authenticate=who_asks_soon if is_async else who_asks)
    for record in caplog.records:
        words = record.getMessage()
        assert "the hook `authenticate` (" in words
        assert (
            f"who_asks{'_soon' if is_async else ''}) returned {returned!r:.80}; return a `Principal`, or None" in words
        )
        assert not record.exc_info
    assert len(caplog.records) == 2


FAILED = {"type": "InternalError", "message": "a hook of this gateway failed; its log has the details"}


@pytest.mark.parametrize("field", ["authenticate", "may_address"])
def test_one_that_raises_is_told_to_the_log_by_its_name_and_the_author_s_own_lines(
    field: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def looks_up(*_: object) -> Any:
        return {"ann": 1}["bob"]  # the line that is at fault

    async def story(door: Any) -> None:
        refused = await door.post("/api/agents/counter/one/call/add", {"args": [1]})
        assert (refused.status, refused.json()["error"]) == (500, FAILED)

    with caplog.at_level(logging.ERROR, "perdure.gateway"):
        at(story, **{field: looks_up})
    words = caplog.records[-1].getMessage()
    assert f"the hook `{field}` (" in words
    assert "looks_up) raised" in words
    assert "# the line that is at fault" in words
    assert words.rstrip().endswith("KeyError: 'bob'")
    assert "perdure/actors" not in words
    assert "author_call" not in words


def test_a_principal_that_a_hook_makes_wrongly_is_not_the_asker_s_mistake(caplog: pytest.LogCaptureFixture) -> None:
    async def story(door: Any) -> None:
        assert (await door.get("/api/runs")).json()["error"] == FAILED

    at(story, authenticate=lambda _: Principal("ann", frozenset({"reed"})))  # type: ignore[arg-type]
    assert "'reed' is none; there are read, chat, operate, admin" in caplog.text


def test_what_a_hook_refuses_by_an_error_for_that_is_passed_on() -> None:
    def refuses(*_: object) -> Any:
        raise Forbidden("not on Sundays")

    async def story(door: Any) -> None:
        refused = await door.get("/api/runs")
        assert (refused.status, refused.json()["error"]["message"]) == (403, "not on Sundays")

    at(story, authenticate=refuses)


@pytest.mark.parametrize(
    "scopes", [{"read", "chat"}, ["chat", "read"], (Scope.READ, "chat"), frozenset({"read", "chat"})]
)
def test_scopes_may_be_words_in_any_collection(scopes: Any) -> None:
    who = Principal("ann", scopes, ["ops"])  # type: ignore[arg-type]
    assert who == Principal("ann", frozenset({Scope.READ, Scope.CHAT}), frozenset({"ops"}))
    assert all(isinstance(each, Scope) for each in who.scopes)
    assert hash(who)


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        (("ann", frozenset({"reed"})), "scopes", "'reed' is none; there are read, chat, operate, admin"),
        (("ann", "read"), "scopes", "'read' is no set of words; give one, as {'read', 'chat'}"),
        (("ann", None), "scopes", "None is no set of words"),
        (("ann", [1]), "scopes", r"\[1\] is no set of words"),
        (("ann", (), "ops"), "groups", "'ops' is no set of words"),
        ((7,), "name", "7 is int, not text"),
    ],
)
def test_a_principal_that_says_something_else_is_refused_by_its_field(given: Any, field: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as refused:
        Principal(*given)
    assert refused.value.field == field
