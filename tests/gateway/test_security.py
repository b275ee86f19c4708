"""The threat model of the gateway (actors/gateway/README.md), line by line."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as ASGIScope

from perdure.actors import Agent, ServePlan
from perdure.actors.gateway.bodies import body_of
from perdure.actors.gateway.rate_limits import GatewayLimits, Rates
from perdure.actors.gateway.refusals import Forbidden
from perdure.actors.gateway.security import (
    Principal,
    Scope,
    Security,
    bearer,
    host_names,
    page_origins,
    token_digest,
    without_token,
)
from perdure.actors.serve.app import Gateway
from perdure.actors.serve.guard import Guard
from perdure.ledger import BadRequest, TooLarge
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.cast import Counter
from tests.gateway.door import Door
from tests.gateway.world import visit, visiting
from tests.kit import played
from tests.tidy import ROOT, imports, sources

KEY = "correct-horse-battery"
READER = Principal("reader", frozenset({Scope.READ}))
NOBODY = Principal("nobody", frozenset())
HOOK = {"authenticate": bearer({KEY: Principal("anna"), "another-one-of-them": READER})}
POSTED: dict[str, Any] = {
    "type": "http",
    "method": "POST",
    "path": "/",
    "query_string": b"",
    "headers": [(b"host", b"localhost")],
}


def at(story: Callable[[Door], Awaitable[Any]], agents: tuple[type[Agent], ...] = (Counter,), **options: Any) -> Any:
    """Play a story in front of a gateway with these options."""

    async def played(door: Door, laboratory: Laboratory) -> Any:
        return await story(door)

    return visit(agents, played, gateway_options=options)


def test_the_numbers_of_the_page_are_the_limits() -> None:
    page = (ROOT / "actors/gateway/README.md").read_text("utf-8")
    told, mib = GatewayLimits(), 1024 * 1024
    rate = f"{told.requests_per_s} a second, {told.requests_burst:,} at once, {told.open_max:,} open"
    head = f"{told.head_bytes_max / 1024:g} KiB and {told.head_s} s"
    sizes = f"{told.body_bytes_max / mib:g} MiB and {told.body_s} s, {head}, {told.frame_bytes_max / mib:g} MiB"
    for words in (
        f"| per principal {rate}; ",
        f"| {sizes} |",
        f"| {told.head_s} s for a head; {told.connections_max:,} connections a process |",
        f"| cut off after {told.stall_s} s; ",
    ):
        assert words in page


def guarded(app: ASGIApp, security: Security | None = None, **limits: Any) -> Door:
    """An application behind the guard alone."""
    return Door(Guard(app, security or Security(), GatewayLimits(**limits)))


async def echo(scope: ASGIScope, receive: Receive, send: Send) -> None:
    """Answers with the length of the body."""
    body = await Request(scope, receive).body()
    await JSONResponse(len(body))(scope, receive, send)


# strangers


def test_beyond_loopback_it_does_not_start_without_a_token_or_a_hook() -> None:
    plan = ServePlan(("tests.gateway.cast:Counter",), host="192.0.2.7")
    with pytest.raises(BadRequest, match="reachable from elsewhere: give a token"):
        plan.application()
    assert plan._replace(token_digest=token_digest(KEY)).application().backend.security.authenticate
    assert plan._replace(host="127.0.0.1").application()


def test_whoever_has_no_token_is_told_so_and_nothing_else() -> None:
    async def story(door: Door) -> None:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {KEY}"}):
            answer = await door.get("/api/runs/x", headers=headers)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        for path, headers in (
            ("/api/runs/x", {"authorization": f"Bearer {KEY}"}),
            (f"/api/runs/x?token={KEY}", {}),
        ):
            assert (await door.get(path, headers=headers)).status == 404
        async with door.socket("/agents/counter/a") as socket:
            assert await socket.receive() is None
            assert socket.closed
            assert socket.closed[0] == 4401

    at(story, **HOOK)


def test_tokens_are_compared_as_digests_of_one_length_and_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[int, int]] = []

    def compare(left: str, right: str) -> bool:
        compared.append((len(left), len(right)))
        return left == right

    monkeypatch.setattr("perdure.actors.gateway.security.hmac.compare_digest", compare)
    authenticate = bearer({"a" * 20: Principal("a"), "b" * 40: Principal("b")})
    for given, name in (("a" * 20, "a"), ("b" * 40, "b"), ("c", None), ("", None), ("ü", None)):
        header = (b"authorization", b"Bearer " + given.encode())
        found: Any = authenticate(HTTPConnection({"type": "http", "headers": [header], "query_string": b""}))
        assert (found and found.name) == name
    assert compared == [(64, 64)] * 10
    with pytest.raises(BadRequest, match="a token is empty"):
        bearer({"": Principal("a")})


@pytest.mark.parametrize("hears", [False, True])
def test_a_connection_that_is_refused_is_taken_first_once_its_wish_was_heard(hears: bool) -> None:
    """A server of ASGI takes no answer before it was asked what the client wants."""
    order: list[str] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        if hears:
            await receive()
        raise Forbidden("not you")

    async def receive() -> Any:
        order.append("receive")
        return {"type": "websocket.connect"}

    async def say(message: Any) -> None:
        order.append(message["type"])

    scope = {"type": "websocket", "path": "/", "query_string": b"", "headers": [(b"host", b"localhost")]}
    asyncio.run(Guard(app, Security(), GatewayLimits())(scope, receive, say))
    assert order == ["receive", "websocket.accept", "websocket.close"]


# what one may do


@played(lambda story: at(story, authenticate=lambda _: NOBODY))
async def test_no_route_and_no_frame_is_open_to_a_principal_without_scopes(door: Door, /) -> None:
    for method, path in _every_route():
        answer = await door.ask(method, path, json_body={} if method != "GET" else None)
        is_page = path in ("/", "/healthz", "/readyz") or (
            path.startswith("/dashboard/") and answer.headers.get("etag")
        )
        assert is_page or answer.status in {401, 403, 404, 405}, (method, path, answer)


def test_who_may_only_read_cannot_have_the_directory_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.actors.rest.steering.served_findings", lambda *_, **__: [])  # it asks from a thread

    async def story(door: Door) -> None:
        headers = {"authorization": "Bearer another-one-of-them"}
        assert (await door.get("/api/doctor", headers=headers)).status == 403
        assert (await door.get("/api/overview", headers=headers)).status == 200

    at(story, **HOOK)


def _every_route() -> list[tuple[str, str]]:
    routes: Any = Gateway((Counter,)).routes
    found: list[tuple[str, str]] = []
    for route in routes:
        path = "/".join("counter" if "{" in part else part for part in route.path.split("/"))
        found += [(method, path) for method in getattr(route, "methods", None) or ()]
    assert len(found) > 5
    return [(method, path) for method, path in found if method not in {"HEAD", "OPTIONS"}]


@pytest.mark.shows(sub_agents="B133")
@visiting(Counter)
async def test_a_guessed_run_or_agent_is_not_found_and_not_created(door: Door, laboratory: Laboratory, /) -> None:
    client: Any = laboratory._client  # noqa: SLF001 - the story's own
    before = await client.ask("ps")
    for path in ("/api/runs/guessed", "/api/runs/guessed/events", "/agents/unknown/x", "/agents/counter"):
        assert (await door.get(path)).status == 404
    after = await client.ask("ps")
    assert (before["runs"], before["agents"]) == (after["runs"], after["agents"])


# pages elsewhere


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        ("http://127.0.0.1:8787", True),
        ("https://127.0.0.1:8787", True),
        ("https://shop.example", True),
        ("HTTPS://Shop.Example", True),
        ("https://shop.example.evil.example", False),
        ("https://not-shop.example", False),
        ("http://evil-127.0.0.1:8787", False),
        ("http://127.0.0.1:8787.evil.example", False),
        ("http://127.0.0.1:3000", False),
        ("null", False),
        ("", False),
        ("http://[", False),
    ],
)
async def test_pages_of_other_origins_may_ask_only_if_they_are_named(origin: str, allowed: bool) -> None:
    door = guarded(echo, Security(origins=page_origins(["https://shop.example"])))
    assert (await door.post("/", headers={"origin": origin})).status == (200 if allowed else 403)
    if not allowed:
        async with door.socket("/", headers={"origin": origin}) as socket:
            assert await socket.receive() is None
            assert socket.closed
            assert socket.closed[0] == 4403


def test_a_browser_is_told_which_pages_may_read_an_answer() -> None:
    asked = {"access-control-request-method": "POST", "access-control-request-headers": "content-type,x-mine"}

    async def story(door: Door) -> None:
        headers = {"origin": "https://shop.example"}
        told = await door.ask("OPTIONS", "/api/runs/x", headers=headers | asked)
        assert told.status == 200
        assert told.headers["access-control-allow-origin"] == "https://shop.example"
        assert told.headers["access-control-allow-credentials"] == "true"
        assert "x-mine" in told.headers["access-control-allow-headers"]
        refused = await door.get("/api/runs/x", headers=headers)
        assert refused.status == 401
        assert refused.headers["access-control-allow-origin"] == "https://shop.example"
        evil = await door.ask("OPTIONS", "/api/runs/x", headers={"origin": "https://evil.example"} | asked)
        assert evil.status == 400
        assert "access-control-allow-origin" not in evil.headers

    at(story, origins=["https://shop.example"], **HOOK)


def test_where_pages_of_any_origin_may_read_answers_none_may_send_cookies() -> None:
    async def story(door: Door) -> None:
        told = await door.get("/api/runs/x", headers={"origin": "https://anybody.example"})
        assert told.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in told.headers

    at(story, origins=["*"], **HOOK)


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("127.0.0.1:8787", True),
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("[::1]:8787", True),
        ("192.0.2.7:8787", True),
        ("agents.example", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("evil.example@localhost", False),
        ("[::1", False),
        ("", False),
    ],
)
async def test_a_name_that_somebody_could_have_pointed_here_is_refused(host: str, allowed: bool) -> None:
    door = guarded(echo, Security(hosts=host_names(["agents.example"])))
    assert (await door.post("/", headers={"host": host})).status == (200 if allowed else 403)


def test_a_probe_need_not_name_a_host_and_whatever_else_is_asked_must() -> None:
    def who(path: str, *headers: tuple[bytes, bytes]) -> Principal:
        asked = HTTPConnection({"type": "http", "path": path, "headers": headers, "query_string": b""})
        return asyncio.run(Security().principal(asked))

    for path in ("/healthz", "/readyz"):
        assert not who(path).scopes
        for host in (b"", b"evil.example"):  # a page that was pointed here would be told why it is not ready
            with pytest.raises(Forbidden, match="is not one of this gateway's"):
                who(path, (b"host", host))
    with pytest.raises(Forbidden, match="is not one of this gateway's"):
        who("/api/overview")


@played(at)
async def test_every_answer_says_that_it_is_nobodys_to_frame_or_to_guess_about(door: Door, /) -> None:
    for path in ("/", "/api/runs/x", "/nowhere", "/dashboard/main.js"):
        answer = await door.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["x-frame-options"] == "DENY"
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert (await door.get("/api/runs/x")).headers["cache-control"] == "no-store"


# too much


async def test_a_principal_that_asks_too_often_is_told_when_to_ask_again_and_others_go_on() -> None:
    door = guarded(echo, Security(**HOOK), requests_per_s=2, requests_burst=3)
    anna, reader = ({"authorization": f"Bearer {token}"} for token in (KEY, "another-one-of-them"))
    assert [(await door.post("/", headers=anna)).status for _ in range(5)] == [200, 200, 200, 429, 429]
    assert (await door.post("/", headers=anna)).headers["retry-after"] == "1"
    assert (await door.post("/", headers=reader)).status == 200
    assert [(await door.post("/")).status for _ in range(5)] == [401, 401, 401, 429, 429]
    assert (await door.post("/", headers=reader)).status == 200, "failures of others cost it nothing"


def test_where_nobody_is_asked_for_a_name_each_address_is_counted_by_itself() -> None:
    class Elsewhere(Door):
        """Asks from another address."""

        def _scope(self, kind: str, method: str, path: str, headers: Mapping[str, str]) -> dict[str, Any]:
            return super()._scope(kind, method, path, headers) | {"client": ("192.0.2.7", 50_000)}

    async def story() -> None:
        for security, statuses in ((Security(), [200, 200, 429]), (Security(bearer({KEY: READER})), [429] * 3)):
            near = guarded(echo, security, requests_per_s=0.01, requests_burst=2)
            far = Elsewhere(near.app)
            known = {"authorization": f"Bearer {KEY}"}
            assert [(await near.post("/", headers=known)).status for _ in range(3)] == [200, 200, 429]
            assert [(await far.post("/", headers=known)).status for _ in range(3)] == statuses

    asyncio.run(story())


def test_rates_let_so_many_through_in_the_long_run_and_forget_names_that_do_not_come_again() -> None:
    rates = Rates(per_s=10, burst=5)
    assert [rates.take("a", 0.0) for _ in range(7)] == [0, 0, 0, 0, 0, pytest.approx(0.1), pytest.approx(0.2)]
    assert rates.take("a", 0.3) == 0
    waits = [rates.take("a", 100.0) for _ in range(6)]
    assert waits == [0, 0, 0, 0, 0, pytest.approx(0.1)], "a silence saves up one burst and no more"
    for number in range(10_001):
        rates.take(f"name {number}", 100.0)
    assert len(rates) == 10_000
    for _ in range(4):
        rates.take("name 10000", 100.0)
    assert rates.take("name 10000", 100.0) == pytest.approx(0.1), "what came last is known, and what came first is not"
    assert [rates.take("a", 100.0) for _ in range(6)] == waits


@pytest.mark.parametrize("name", GatewayLimits.__dataclass_fields__)
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_limit_that_would_let_nothing_through_is_refused(name: str, value: float) -> None:
    with pytest.raises(BadRequest) as refused:
        GatewayLimits(**{name: value})  # type: ignore[arg-type]
    assert refused.value.field == name
    assert GatewayLimits(**{name: 1})  # type: ignore[arg-type]


def test_frames_that_come_too_fast_wait_and_none_is_lost() -> None:
    heard: list[float] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] == "websocket.receive":
            heard.append(asyncio.get_running_loop().time())

    async def story(laboratory_door: Door) -> None:
        door = guarded(app, requests_per_s=10, requests_burst=3)
        async with door.socket("/") as socket:
            for number in range(12):
                socket.send({"number": number})
            while len(heard) < 12:
                await asyncio.sleep(0.05)
        assert heard[-1] - heard[0] == pytest.approx(1.0, abs=0.15)

    at(story)


async def test_open_connections_of_one_principal_are_counted() -> None:
    release = asyncio.Event()

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await release.wait()
        await send({"type": "websocket.close"})

    door = guarded(app, open_max=2)
    async with door.socket("/"), door.socket("/"):
        async with door.socket("/") as third:
            assert await third.receive() is None
            assert third.closed
            assert third.closed[0] == 1013
        release.set()
    async with door.socket("/") as fourth:
        assert await fourth.receive() is None
        assert fourth.closed == (1000, "")


async def test_a_body_or_a_frame_that_is_too_large_is_refused_before_it_is_whole() -> None:
    door = guarded(echo, body_bytes_max=1000)
    assert (await door.post("/", body=b"x" * 1000)).json() == 1000
    assert (await door.post("/", body=b"x" * 1001)).status == 413
    assert (await door.post("/", headers={"content-length": "1001"})).status == 413
    assert (await door.post("/", headers={"content-length": "9" * 5000})).status == 413

    async def listening(scope: ASGIScope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        raise AssertionError("the frame came through")

    async with guarded(listening, frame_bytes_max=10).socket("/") as socket:
        socket.send("x" * 11)
        assert await socket.receive() is None
        assert socket.closed
        assert socket.closed[0] == 4413


@pytest.mark.parametrize(("last", "status"), [(b"x" * 400, 200), (b"x" * 401, 413)])
async def test_a_body_in_pieces_is_bounded_in_all_although_it_declares_no_length(last: bytes, status: int) -> None:
    told: list[Any] = []
    pieces = [b"x" * 300, b"x" * 300, last]

    async def receive() -> Any:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    async def say(message: Any) -> None:
        told.append(message)

    await Guard(echo, Security(), GatewayLimits(body_bytes_max=1000))(POSTED, receive, say)
    assert told[0]["status"] == status

    pieces[:] = [b"x" * 300, b"x" * 300, last, b"never asked for"]
    if status == 200:
        pieces.pop()
        assert len(await body_of(Request(POSTED, receive), 1000)) == 1000
        return
    with pytest.raises(TooLarge, match="more than 1000 bytes"):
        await body_of(Request(POSTED, receive), 1000)
    assert pieces == [b"never asked for"]


@pytest.mark.parametrize(
    ("declared", "is_read"), [("1000", True), ("1001", False), ("9" * 5_000, False), ("-1", True), ("a lot", True)]
)
async def test_a_body_that_declares_to_be_too_large_is_refused_before_it_is_read(declared: str, is_read: bool) -> None:
    async def receive() -> Any:
        assert is_read
        return {"type": "http.request", "body": b"x", "more_body": False}

    headers = [(b"content-length", declared.encode())]
    request = Request({"type": "http", "headers": headers}, receive)
    if is_read:
        assert await body_of(request, 1000) == b"x"
        return
    with pytest.raises(TooLarge, match="more than 1000 bytes"):
        await body_of(request, 1000)


@played(at)
async def test_a_body_that_never_ends_is_waited_for_only_so_long(door: Door, /) -> None:
    told: list[Any] = []
    guard = Guard(echo, Security(), GatewayLimits(body_s=5))
    clock = asyncio.get_running_loop().time
    began_s = clock()

    async def drip() -> Any:
        await asyncio.sleep(1)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def say(message: Any) -> None:
        told.append(message)

    await guard(POSTED, drip, say)
    assert told[0]["status"] == 408
    assert clock() - began_s == pytest.approx(5, abs=0.1)


@pytest.mark.parametrize(
    ("kind", "piece"),
    [
        ("http", {"type": "http.response.body", "body": b"x", "more_body": True}),
        ("websocket", {"type": "websocket.send", "bytes": b"x"}),
    ],
)
def test_who_sends_without_a_pause_lets_others_go_on(kind: str, piece: dict[str, object]) -> None:
    """A server takes what is sent to a client that has left, and pauses nobody."""

    async def torrent(scope: ASGIScope, receive: Receive, send: Send) -> None:
        for _ in range(100):
            await send(piece)
        seen.append(others.done())

    async def taken(_message: object) -> None:
        """At once."""

    async def story() -> None:
        nonlocal others
        others = asyncio.ensure_future(asyncio.sleep(0))
        scope = {"type": kind, "method": "GET", "path": "/", "query_string": b"", "headers": [(b"host", b"localhost")]}
        await Guard(torrent, Security(), GatewayLimits())(scope, lambda: asyncio.sleep(0), taken)

    others: asyncio.Future[None]
    seen: list[bool] = []
    asyncio.run(story())
    assert seen == [True]


# what leaks


def test_a_token_in_a_query_is_struck_out_before_anybody_else_sees_the_query() -> None:
    assert without_token(b"a=1&token=s&b=2") == b"a=1&b=2"
    assert without_token(b"token=s") == b""
    assert without_token(b"%74oken=s&tokens=3&token") == b"tokens=3"
    seen: list[bytes] = []

    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        seen.append(scope["query_string"])
        await Response()(scope, receive, send)

    async def story() -> None:
        door = guarded(app, Security(**HOOK))
        assert (await door.get(f"/?x=1&token={KEY}")).status == 200
        assert (await door.get(f"/?x=2&token={KEY}a")).status == 401

    asyncio.run(story())
    assert seen == [b"x=1"]


def test_of_a_bug_the_asker_hears_nothing_but_that_there_is_one(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: ASGIScope, receive: Receive, send: Send) -> None:
        raise KeyError("where the treasure lies")

    async def story() -> None:
        answer = await guarded(app).get("/")
        assert answer.status == 500
        assert b"treasure" not in answer.body
        async with guarded(app).socket("/") as socket:
            assert await socket.receive() is None
            assert socket.closed
            assert (socket.closed[0], "treasure" in socket.closed[1]) == (1011, False)

    with caplog.at_level(logging.ERROR):
        asyncio.run(story())
    assert "treasure" in caplog.text


def test_a_plan_that_goes_to_other_processes_has_no_token_in_it() -> None:
    plan = ServePlan(("tests.gateway.cast:Counter",), token_digest=token_digest(KEY))
    assert KEY not in repr(plan)


def test_nothing_from_outside_is_unpickled() -> None:
    folders = tuple(
        f"actors/{room}/"
        for room in ("gateway", "rest", "ai_sdk", "agents_client", "ag_ui", "mcp_server", "serve", "dashboard")
    )
    loaders = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "yaml", "msgpack"}
    files = [file for file in sources("actors") if file.path.startswith(folders)]
    assert len(files) > 10
    assert not [(file.path, each.top) for file in files for each in imports(file) if each.top in loaders]
