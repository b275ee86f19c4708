"""What a gateway says while nobody can be asked: 503 with the true words, for as long as it is so, and not a moment longer."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from perdure.actors import Agent, exposed
from perdure.actors.gateway import problems
from perdure.actors.gateway.refusals import (
    Forbidden,
    GatewayStopped,
    NoSuchAgent,
    NotNow,
    TooManyRequests,
    TooSlow,
    Unauthenticated,
    UnknownEncoding,
)
from perdure.actors.gateway.security import Principal, Scope, bearer
from perdure.actors.link.wire import RemoteError, error_from_plain, error_to_plain
from perdure.actors.remote.remote_requests import error_of
from perdure.ledger import (
    AdmissionRefused,
    AgentAborted,
    AgentForbidden,
    AgentUnreachable,
    AnswerForbidden,
    AnswerRefused,
    AskClosed,
    AskRefused,
    BadRequest,
    BucketUnreachable,
    ConflictingRequest,
    EventRefused,
    HostUnavailable,
    LedgerError,
    LedgerUnwritable,
    NoLongerServed,
    OutcomeUnknown,
    Overloaded,
    PauseRefused,
    PerdureError,
    RetryRefused,
    RuntimeClosed,
    StorageConflict,
    StorageLost,
    SupervisorUnreachable,
    TooLarge,
    UnknownAsk,
    UnknownRun,
    VersionMismatch,
)
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door
from tests.gateway.world import visit, visiting

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

    def __init__(self, transport: Any) -> None:
        self._transport, self.problem, self.door = transport, None, ""

    problem: LedgerError | None

    async def exchange(self, frame: bytes) -> bytes:
        if self.problem is not None:
            raise self.problem
        answer: bytes = await self._transport.exchange(frame)
        if self.problem is not None:
            raise self.problem
        return answer

    async def look(self, door: str, frame: bytes) -> bytes:
        answer: bytes = await self._transport.look(door, frame)
        return answer


def broken_off(laboratory: Laboratory) -> Failing:
    peer = laboratory._client.peer  # type: ignore[union-attr]  # noqa: SLF001 - the gateway's
    peer.transport = failing = Failing(peer.transport)
    return failing


async def all_of(pieces: AsyncGenerator[bytes, None]) -> bytes:
    return b"".join([each async for each in pieces])


@pytest.mark.parametrize("problem", [FULL, STOPPED])
@visiting(Slow)
async def test_while_the_ledger_cannot_go_on_requests_are_refused_with_503_and_afterwards_they_are_answered(
    door: Door, laboratory: Laboratory, /, problem: LedgerError
) -> None:
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


@visiting(Slow)
async def test_event_streams_and_sockets_that_are_under_way_are_cut_and_never_hang(
    door: Door, laboratory: Laboratory, /
) -> None:
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


@visiting(Slow)
async def test_hosts_that_cannot_start_are_a_503_with_the_cause_and_not_ready(
    door: Door, laboratory: Laboratory, /
) -> None:
    laboratory.simulation.cluster.broken = lambda _spec: "ImportError: libfoo"
    for host in laboratory.simulation.live_hosts():
        laboratory.simulation.kill(host)
    async with asyncio.timeout(30):
        answer = await door.post("/api/agents/slow/one/call/greet", {"args": []})
    assert answer.status == 503
    assert answer.json()["error"]["type"] == "HostUnavailable"
    assert "ImportError: libfoo" in answer.json()["error"]["message"]
    assert "ImportError: libfoo" in (await door.get("/readyz")).json()["why"]
    assert (await door.get("/api/overview")).json()["unstartable"][0]["cause"] == "ImportError: libfoo"
    laboratory.simulation.cluster.broken = lambda _spec: ""


@pytest.mark.parametrize("raises", [True, False])
def test_a_probe_is_answered_although_the_hook_that_names_people_is_out_of_order(*, raises: bool) -> None:
    asked: list[str] = []

    async def broken(connection: Any) -> None:
        asked.append(connection.url.path)
        if raises:
            raise RuntimeError("the directory of people is away")
        await asyncio.sleep(1_000_000)

    async def story(door: Door, laboratory: Laboratory) -> None:
        assert (await door.get("/healthz")).json() == {"alive": True}
        assert (await door.get("/readyz")).json() == {"ready": True}
        assert asked == []
        broken_off(laboratory).problem = FULL
        ready = await door.get("/readyz", headers={"authorization": "Bearer x"})
        assert (ready.status, "disk" in ready.body.decode()) == (503, False)

    visit([Slow], story, gateway_options={"authenticate": broken})


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


@pytest.mark.parametrize(
    ("problem", "status", "code", "header"),
    [
        (BadRequest("field", "is wrong"), 400, 4400, {}),
        (TooLarge("body", "it is"), 413, 4413, {}),
        (UnknownRun("run", "there is none"), 404, 4404, {}),
        (Unauthenticated("nobody"), 401, 4401, {"www-authenticate": "Bearer"}),
        (TooManyRequests("enough", 1.2), 429, 1013, {"retry-after": "2"}),
        (TooManyRequests("enough"), 429, 1013, {"retry-after": "1"}),
        (TooSlow("it is"), 408, 4408, {}),
        (NotNow("it is on its way"), 409, 4409, {}),
        (RuntimeClosed("runtime", "it is"), 503, 1011, {}),
        (HostUnavailable("none"), 503, 1011, {"retry-after": "2"}),
        (BucketUnreachable("s3://secret/prefix", 7.0, "refused", 2_000), 503, 1011, {"retry-after": "2"}),
        (FULL, 503, 1011, {"retry-after": "2"}),
        (KeyError("a bug of ours"), 500, 1011, {}),
        (PerdureError("a bug of ours"), 500, 1011, {}),
    ],
)
def test_a_refusal_has_the_status_the_close_code_and_the_advice_of_its_kind(
    problem: Exception, status: int, code: int, header: dict[str, str]
) -> None:
    answer = problems.refusal(problem)
    assert answer.status_code == status
    assert {name: value for name, value in answer.headers.items() if not name.startswith("content-")} == header
    assert problems.close_code(problem)[0] == code
    told = json.loads(bytes(answer.body))["error"]
    assert told["type"] == ("InternalError" if status == 500 else type(problem).__name__)
    assert ("args" in told, "bug of ours" in str(told)) == (status != 500, False)
    assert told.get("field") == getattr(problem, "field", None)
    assert status != 429 or told["message"] == "enough"
    if status != 500:  # a client of Perdure raises the same
        again = error_of(status, json.loads(bytes(answer.body)))
        shown = problems.public(problem)
        assert (type(again), str(again), vars(again)) == (type(shown), str(shown), vars(shown))


def test_an_error_that_is_made_of_more_than_texts_and_numbers_is_told_in_words_alone() -> None:
    answer = problems.refusal(UnknownRun("run", ["neither", "nor"]))  # type: ignore[arg-type]
    assert json.loads(bytes(answer.body)) == {
        "error": {"type": "UnknownRun", "field": "run", "message": "run: ['neither', 'nor']"}
    }


def test_the_reason_of_a_close_is_cut_between_two_characters() -> None:
    words = "ü" * 200
    _, reason = problems.close_code(UnknownRun("run", words))
    assert f"run: {words}".startswith(reason)
    assert 122 <= len(reason.encode()) <= problems.REASON_BYTES


def test_the_path_of_the_directory_is_told_to_nobody_and_what_is_of_no_path_is_told_as_it_is() -> None:
    assert "/srv/secret" not in str(problems.public(FULL))
    assert str(problems.public(FULL)) == "the data directory: the disk is full — free some space"
    mismatch = VersionMismatch("1.0", "1.1")
    assert problems.public(mismatch) is mismatch


KINDS = {
    400: (BadRequest,),
    401: (Unauthenticated,),
    403: (Forbidden, AgentForbidden, AnswerForbidden),
    404: (NoSuchAgent, UnknownRun, AgentUnreachable, UnknownAsk),
    408: (TooSlow,),
    409: (
        ConflictingRequest,
        RetryRefused,
        EventRefused,
        PauseRefused,
        AskClosed,
        AnswerRefused,
        AskRefused,
        problems.NotNow,
        AgentAborted,
        StorageConflict,
    ),
    413: (TooLarge,),
    415: (UnknownEncoding,),
    422: (RemoteError, problems.AgentRaised),
    429: (TooManyRequests, AdmissionRefused, Overloaded),
    500: (KeyError, PerdureError),
    502: (OutcomeUnknown,),
    503: (
        RuntimeClosed,
        StorageLost,
        GatewayStopped,
        SupervisorUnreachable,
        HostUnavailable,
        BucketUnreachable,
        LedgerError,
    ),
}


@pytest.mark.parametrize(("status", "kind"), [(status, kind) for status, kinds in KINDS.items() for kind in kinds])
def test_each_kind_of_error_has_its_status(status: int, kind: type[Exception]) -> None:
    """By which clients know whether to ask again, and Perdure's own which error it was."""
    assert problems.status_of(kind.__new__(kind)) == status
    assert {each for kinds in KINDS.values() for each in kinds} >= {each for each, _ in problems.STATUSES}


def test_a_client_is_told_the_words_of_what_an_author_raised_and_not_its_arguments() -> None:
    """Which may be what JSON cannot say."""
    heard = error_from_plain(error_to_plain(ValueError(math.nan)))
    assert math.isnan(heard.args[0])
    assert json.loads(bytes(problems.refusal(heard).body))["error"]["args"] == ["ValueError", "nan"]
