"""Webhooks over the ASGI app: what is acknowledged is durable, what cannot be accepted comes again, and nothing that is sent is a 500."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.actors import Messenger, MessengerAgent, Telegram, Webhook, conversation_name, messenger_app
from perdure.actors.messenger.adapter import WebhookReply
from perdure.actors.messenger.messenger_events import MessengerEvent
from perdure.actors.messenger.telegram import SECRET_HEADER
from perdure.ledger import BadRequest
from perdure.scenarios.provider.faults import Pace
from tests.actors.messenger.paper import Board, Bot, Chat, Paper, answer_to, visit
from tests.kit import played

PATH = "/messengers/paper/webhook"
RIGHT = {"x-secret": "right"}


async def knock(
    app: Any,
    body: bytes = b"hello",
    headers: dict[str, str] | None = None,
    *,
    method: str = "POST",
    path: str = PATH,
    pieces: int = 1,
    hangs_up: bool = False,
) -> tuple[int, dict[str, str]]:
    """Send one request to an ASGI app; the status and the headers of its answer."""
    size = max(1, -(-len(body) // pieces))
    chunks = [body[at : at + size] for at in range(0, len(body), size)] or [b""]
    told: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if hangs_up and len(chunks) == 1:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunks.pop(0) if chunks else b"", "more_body": bool(chunks)}

    async def send(message: dict[str, Any]) -> None:
        told.append(message)

    raw = [(name.encode(), value.encode("latin-1")) for name, value in ({} if headers is None else headers).items()]
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": raw,
    }
    await app(
        {**scope, "http_version": "1.1", "scheme": "http", "root_path": "", "asgi": {"version": "3.0"}}, receive, send
    )
    answered = {name.decode(): value.decode() for name, value in told[0]["headers"]}
    return told[0]["status"], answered


class Deaf:
    """An agent's handle of which nobody answers, or that refuses."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem, self.heard = problem, list[MessengerEvent]()

    def agent(self, agent_class: Any, name: str) -> Any:
        return self

    async def receive(self, event: MessengerEvent) -> Any:
        self.heard.append(event)
        if self.problem is not None:
            raise self.problem
        await asyncio.get_running_loop().create_future()


class Quick(Deaf):
    """One that accepts everything."""

    async def receive(self, event: MessengerEvent) -> Any:
        self.heard.append(event)
        return {"accepted": True, "reply": "1"}


def doors(story: Callable[[Any], Awaitable[Any]], handles: Any, *classes: type[MessengerAgent], **options: Any) -> Any:
    """Knock at an app outside of any world."""
    return asyncio.run(story(messenger_app(handles, *(classes or (Bot,)), **options)))  # type: ignore[arg-type]


@pytest.mark.shows(messenger="M9 M61 W21 weakness-41")
def test_a_webhook_is_acknowledged_when_it_is_durable_and_answered_then() -> None:
    """W21, weakness 41: killed right after the acknowledgement, the agent answers in its next life. Delivered again, it answers once."""

    async def story(chat: Chat) -> Any:
        app = messenger_app(chat.client, Bot)
        assert (await knock(app, b"a story please", RIGHT))[0] == 200
        name = conversation_name("paper", "t")
        chat.kill(name)
        for _ in range(3):
            assert (await knock(app, b"a story please", RIGHT))[0] == 200
        await chat.until(lambda: Board.thread() == [answer_to("story")])
        return await chat.do("list_deliveries", name=name)

    Board.begin()
    (row,), _ = visit(story, pace=Pace(first_ms=500))
    assert row["outcome"] == "answered"


@pytest.mark.shows(messenger="M15 M44")
def test_what_is_not_verified_or_cannot_be_read_is_refused_and_nobody_hears_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """M15, M44: 401, 400, 413, 405, 404; each with a line in the log that says which messenger it was."""
    deaf = Deaf()

    async def story(app: Any) -> None:
        assert (await knock(app))[0] == 401
        assert (await knock(app, headers={"x-secret": "wrong"}))[0] == 401
        assert (await knock(app, b"malformed", RIGHT))[0] == 400
        assert (await knock(app, b"x" * 101, RIGHT))[0] == 413
        assert (await knock(app, b"x" * 101, RIGHT, pieces=5))[0] == 413
        for length in ("101", "9" * 400):
            assert (await knock(app, b"", {**RIGHT, "content-length": length}))[0] == 413
        for length in ("100", "many", "²", "-1"):
            assert (await knock(app, b"malformed" + b"x" * 91, {**RIGHT, "content-length": length}, pieces=5))[0] == 400
        assert (await knock(app, b"0123456789", RIGHT, pieces=2, hangs_up=True))[0] in (400, 401, 200, 503)
        for method in ("GET", "PUT", "DELETE", "HEAD", "OPTIONS"):
            status, headers = await knock(app, headers=RIGHT, method=method)
            assert (status, headers["allow"]) == (405, "POST")
        for path in ("/", PATH + "/", "/messengers/other/webhook", "/messengers//webhook", PATH + "/x"):
            assert (await knock(app, headers=RIGHT, path=path))[0] == 404

    doors(story, deaf, body_max=100, accept_timeout_s=0.01)
    assert sum("paper" in each.message for each in caplog.records) >= 6


@pytest.mark.parametrize("problem", [None, RuntimeError("the author's own"), ConnectionError("away")])
def test_who_cannot_accept_asks_the_provider_to_come_again(problem: Exception | None) -> None:
    async def story(app: Any) -> None:
        status, headers = await knock(app, b"hello", RIGHT)
        assert (status, headers["retry-after"]) == (503, "2")

    doors(story, Deaf(problem), accept_timeout_s=0.01)


@played(lambda story: doors(story, Deaf(BadRequest("event", "is not one"))))
async def test_what_the_agent_finds_malformed_is_a_refusal_for_good(app: Any, /) -> None:
    assert (await knock(app, b"hello", RIGHT))[0] == 400


class Own(MessengerAgent):
    """Its verifier answers for itself."""

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        def verify(webhook: Webhook) -> bool | WebhookReply:
            if webhook.body == b"raise":
                raise ValueError("a verifier that is broken")
            return WebhookReply(403, "not here") if webhook.body == b"no" else True

        return [Messenger(id="own", adapter=Paper(), verify=verify, path="/own")]


@pytest.mark.shows(messenger="M14 M16")
def test_a_verifier_of_the_authors_may_answer_and_if_it_breaks_nobody_comes_in() -> None:
    """M14, M16: what is let in still has its body."""
    quick = Quick()

    async def story(app: Any) -> None:
        assert (await knock(app, b"no", path="/own"))[0] == 403
        assert (await knock(app, b"raise", path="/own"))[0] == 401
        assert (await knock(app, b"hello", path="/own"))[0] == 200

    doors(story, quick, Own)
    assert [event.text for event in quick.heard] == ["hello"]


@pytest.mark.parametrize("verdict", [1, "ok", [True], None, False])
def test_only_true_lets_a_webhook_in(verdict: Any) -> None:
    class Lax(MessengerAgent):
        @classmethod
        def messengers(cls) -> Sequence[Messenger]:
            return [Messenger(id="lax", adapter=Paper(), verify=lambda _: verdict, path="/lax")]

    quick = Quick()

    async def story(app: Any) -> None:
        assert (await knock(app, b"hello", RIGHT, path="/lax"))[0] == 401

    doors(story, quick, Lax)
    assert not quick.heard


class Lost(MessengerAgent):
    """Cannot say which of its agents an event is for."""

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        return [Messenger(id="lost", adapter=Paper(), conversation=lambda event: {}[event.thread_id], path="/lost")]


@pytest.mark.shows(messenger="weakness-50")
def test_an_event_for_which_no_agent_is_found_is_not_lost_in_silence(caplog: pytest.LogCaptureFixture) -> None:
    """Weakness 50: nothing was accepted, so the provider delivers it again; and the log says what is wrong."""

    async def story(app: Any) -> None:
        assert (await knock(app, b"hello", RIGHT, path="/lost"))[0] == 503

    doors(story, Quick(), Lost)
    assert "KeyError" in caplog.text


@pytest.mark.shows(messenger="M46")
def test_two_messengers_cannot_have_one_path() -> None:
    """M11, M12, M46."""
    with pytest.raises(BadRequest, match="path"):
        messenger_app(Deaf(), Bot, Bot)


class OnTelegram(MessengerAgent):
    """Behind a bot."""

    secret: ClassVar[str] = "s3" + "cret"

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        return [Messenger(id="tg", adapter=Telegram("12:abc", secret_token=cls.secret, user_name="perdure_bot"))]


MESSAGE = {
    "message_id": 9,
    "date": 5,
    "chat": {"id": 7, "type": "private"},
    "from": {"id": 7, "first_name": "A"},
    "text": "hi",
}
UPDATE = json.dumps({"update_id": 5, "message": MESSAGE}).encode()
SECRETS = st.sampled_from([OnTelegram.secret, "", "wrong", "s3cre", "\xff"])
BODIES = (
    st.binary(max_size=60)
    | st.integers(0, len(UPDATE)).map(lambda at: UPDATE[:at])
    | st.tuples(st.integers(0, len(UPDATE) - 1), st.integers(0, 255)).map(
        lambda flip: UPDATE[: flip[0]] + bytes([flip[1]]) + UPDATE[flip[0] + 1 :]
    )
    | st.just(UPDATE)
)


@settings(max_examples=200, deadline=None)
@given(BODIES, SECRETS, st.sampled_from(["POST", "GET", "PATCH"]))
def test_forged_truncated_and_damaged_webhooks_are_refused_or_mean_something(
    body: bytes, secret: str, method: str
) -> None:
    """Nothing is a 500; and what is accepted had the secret and was whole."""
    quick = Quick()

    async def story(app: Any) -> int:
        return (await knock(app, body, {SECRET_HEADER: secret}, method=method, path="/messengers/tg/webhook"))[0]

    status = doors(story, quick, OnTelegram)
    assert status in (200, 400, 401, 405)
    assert not quick.heard or (
        status == 200 and secret == OnTelegram.secret and json.loads(body.decode())["update_id"] >= 0
    )


class Prepared(Paper):
    """Prepares itself, and is closed."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self.told = name, told

    async def prepare(self) -> None:
        self.told.append(f"prepare {self.name}")
        if self.name == "broken":
            raise ConnectionError("nobody is there")

    async def close(self) -> None:
        self.told.append(f"close {self.name}")
        if self.name == "broken":
            raise ConnectionError("nor now")


def test_adapters_prepare_with_the_application_and_are_closed_with_it_whatever_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    told: list[str] = []

    class Several(Bot):
        """Has adapters of all kinds."""

        @classmethod
        def messengers(cls) -> Sequence[Messenger]:
            adapters = {"broken": Prepared("broken", told), "plain": Paper(), "whole": Prepared("whole", told)}
            return [Messenger(id=name, adapter=adapter) for name, adapter in adapters.items()]

    async def story(app: Any) -> None:
        async with app.router.lifespan_context(app):
            assert told == ["prepare broken", "prepare whole"]
            for name in ("broken", "plain", "whole"):
                path = f"/messengers/{name}/webhook"
                assert (await knock(app, b"hello", RIGHT, path=path))[0] == 200
        assert told[2:] == ["close broken", "close whole"]

    doors(story, Quick(), Several)
    assert "messenger broken could not prepare: ConnectionError: nobody is there" in caplog.text
