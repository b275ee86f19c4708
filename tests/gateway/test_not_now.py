"""What a gateway says while nobody can be asked: 503 with the true words, for as long as it is so, and not a moment longer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from perdure.actors import Agent, exposed
from perdure.actors.gateway import problems
from perdure.actors.gateway.security import Principal, Scope, bearer
from perdure.ledger import LedgerError, LedgerUnwritable, NoLongerServed
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door
from tests.gateway.world import visit

FULL = LedgerUnwritable("/srv/secret/ledger", "the disk is full", "free some space")
STOPPED = NoLongerServed("/srv/secret", "what served it was stopped (`perdure stop`)", "open it anew")


class Slow(Agent):
    """Takes its time."""

    stands_alone = True

    async def run(self, input: int) -> int:
        await asyncio.sleep(input)
        return input

    @exposed
    def greet(self) -> str:
        return "hello"


class Failing:
    """The way to a supervisor whose ledger can be told to fail."""

    def __init__(self, courier: Any) -> None:
        self._courier, self.problem, self.door = courier, None, ""

    problem: LedgerError | None

    async def exchange(self, frame: bytes) -> bytes:
        if self.problem is not None:
            raise self.problem
        answer: bytes = await self._courier.exchange(frame)
        if self.problem is not None:
            raise self.problem
        return answer

    async def look(self, door: str, frame: bytes) -> bytes:
        answer: bytes = await self._courier.look(door, frame)
        return answer


def broken_off(laboratory: Laboratory) -> Failing:
    peer = laboratory._client.peer  # type: ignore[union-attr]  # noqa: SLF001 - the gateway's
    peer.courier = failing = Failing(peer.courier)
    return failing


async def all_of(pieces: AsyncGenerator[bytes, None]) -> bytes:
    return b"".join([each async for each in pieces])


@pytest.mark.parametrize("problem", [FULL, STOPPED])
def test_while_the_ledger_cannot_go_on_requests_are_refused_with_503_and_afterwards_they_are_answered(
    problem: LedgerError,
) -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        assert (await door.get("/readyz")).json() == {"ready": True}
        failing = broken_off(laboratory)
        failing.problem = problem
        for _ in range(3):
            for method, path in (("GET", "/api/overview"), ("POST", "/api/agents/slow/one/call/greet")):
                body = {"args": []} if method == "POST" else None
                async with asyncio.timeout(5):
                    answer = await door.ask(method, path, json_body=body)
                assert (answer.status, answer.headers["retry-after"]) == (503, "2")
                told = answer.json()["error"]
                assert (told["type"], problem.problem in told["message"]) == (type(problem).__name__, True)
                assert "/srv/secret" not in answer.body.decode()
            ready = await door.get("/readyz")
            assert (ready.status, problem.problem in ready.json()["why"]) == (503, True)
            assert (await door.get("/healthz")).json() == {"alive": True}
        failing.problem = None
        await asyncio.sleep(2)
        assert (await door.get("/readyz")).json() == {"ready": True}
        assert (await door.post("/api/agents/slow/one/call/greet", {"args": []})).json() == {"value": "hello"}

    visit([Slow], story)


def test_event_streams_and_sockets_that_are_under_way_are_cut_and_never_hang() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        failing = broken_off(laboratory)
        await door.post("/api/runs", {"type": "slow", "input": 200, "run_id": "r"})
        async with door.stream("GET", "/api/runs/r/events") as (_, pieces), door.socket("/agents/slow/one") as socket:
            assert b"started" in await anext(pieces)
            await socket.receive()
            failing.problem = FULL
            async with asyncio.timeout(90):
                with pytest.raises(LedgerUnwritable):
                    await all_of(pieces)
        failing.problem = None
        await asyncio.sleep(2)
        async with door.stream("GET", "/api/runs/r/events") as (_, pieces):
            assert b"started" in await anext(pieces)

    visit([Slow], story)


def test_hosts_that_cannot_start_are_a_503_with_the_cause_and_not_ready() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        laboratory.simulation.fail_hosts(lambda _spec: "ImportError: libfoo")
        for host in laboratory.simulation.live_hosts():
            laboratory.simulation.kill(host)
        async with asyncio.timeout(30):
            answer = await door.post("/api/agents/slow/one/call/greet", {"args": []})
        assert answer.status == 503
        assert answer.json()["error"]["type"] == "HostUnavailable"
        assert "ImportError: libfoo" in answer.json()["error"]["message"]
        assert "ImportError: libfoo" in (await door.get("/readyz")).json()["why"]
        assert (await door.get("/api/overview")).json()["unstartable"][0]["cause"] == "ImportError: libfoo"
        laboratory.simulation.fail_hosts(lambda _spec: "")

    visit([Slow], story)


def test_a_probe_needs_no_token_and_is_told_nothing_but_whether(caplog: pytest.LogCaptureFixture) -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        broken_off(laboratory).problem = FULL
        assert (await door.get("/healthz")).status == 200
        ready = await door.get("/readyz")
        assert (ready.status, "disk" in ready.body.decode()) == (503, False)
        known = {"authorization": "Bearer sixteen-letters-"}
        assert "disk" in (await door.get("/readyz", headers=known)).body.decode()
        assert (await door.get("/api/overview")).status == 401
        await door.get("/api/overview", headers=known)
        await door.get("/api/overview", headers=known)

    who = bearer({"sixteen-letters-": Principal("ops", frozenset({Scope.READ}))})
    visit([Slow], story, gateway_options={"authenticate": who})
    assert sum("nobody can be asked" in each.getMessage() for each in caplog.records) <= 1


def test_the_log_hears_of_a_cause_once_a_minute_however_many_causes_there_are(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "_WARNED", {})
    for number in range(2 * problems.WARNED_MAX + 50):
        for _ in range(3):
            problems.warn_once(LedgerUnwritable("/srv/secret", f"cause {number}.", "free some space"))
        assert caplog.text.count(f"cause {number}.") == 1
        assert len(problems._WARNED) <= problems.WARNED_MAX  # noqa: SLF001 - a log must not fill the memory
    monkeypatch.setattr(problems, "WARN_EVERY_S", 0.0)
    problems.warn_once(LedgerUnwritable("/srv/secret", "cause 0.", "free some space"))
    problems.warn_once(LedgerUnwritable("/srv/secret", "cause 0.", "free some space"))
    assert caplog.text.count("cause 0.") == 3
