"""The scripted provider over real sockets, heard through the OpenAI SDK: every fault is as it is meant, and everything is counted."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from openai import AsyncOpenAI
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelMessage, ModelRequest, UserPromptPart
from pydantic_ai.models import infer_model

from perdure.scenarios.provider.events import Comment, Done, Finish, Raw, Role, Text, Usage, frames
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace
from perdure.scenarios.provider.script import Script, ScriptedQuestion, answer, conclusion
from perdure.scenarios.provider.server import SocketProvider
from tests.scenarios.listening import ASK, SCRIPT, Heard, every_place, listen, wait_until, with_results

T = TypeVar("T")
SPOKEN = "I read and I search → at once."
LOST = ("APIConnectionError", "ReadError")
BROKEN_OFF = ("APIConnectionError", "RemoteProtocolError")
REFUSED = ("APIConnectionError", "ConnectError")
CUT_CHARACTER = ("UnicodeDecodeError", "")


@pytest.fixture
def provider() -> Iterator[SocketProvider]:
    with SocketProvider(SCRIPT) as provider:
        yield provider


@asynccontextmanager
async def connected(provider: SocketProvider, **options: Any) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=provider.base_url, api_key="scripted", max_retries=0, **options) as client:
        yield client


def talk(provider: SocketProvider, story: Callable[[AsyncOpenAI], Awaitable[T]], **options: Any) -> T:
    """Play a story with a client of its own."""

    async def main() -> T:
        async with connected(provider, **options) as client:
            return await story(client)

    return asyncio.run(main())


def heard(provider: SocketProvider, fault: Fault | None = None, **options: Any) -> Heard:
    """What one request gets when this goes wrong."""
    provider.set_plan(FaultPlan.at({1: fault}) if fault else FaultPlan())
    return talk(provider, listen, **options)


def heard_each(provider: SocketProvider, faults: Sequence[Fault], *messages: dict[str, Any]) -> list[Heard]:
    """What one client gets for so many requests, one after the other, when the n-th goes wrong in the n-th way."""
    provider.set_plan(FaultPlan.at(dict(enumerate(faults, 1))))

    async def story(client: AsyncOpenAI) -> list[Heard]:
        return [await listen(client, messages or (ASK,)) for _ in faults]

    return talk(provider, story)


def ending(heard: Heard) -> tuple[str, str]:
    return heard.error, heard.cause


def test_a_whole_conversation_without_a_fault(provider: SocketProvider) -> None:
    async def story(client: AsyncOpenAI) -> Heard:
        messages: list[dict[str, Any]] = [ASK]
        for results in (["r", "s"], ["w"]):
            said = await listen(client, messages)
            assert said.finish == "tool_calls"
            messages += with_results(said, results)
        return await listen(client, messages)

    last = talk(provider, story)
    assert last.text == conclusion(SCRIPT.questions[0], ["r", "s", "w"])
    assert last.finish == "stop"
    counters = provider.counters()
    assert (counters.requests, counters.connections, counters.illegal) == (3, 1, 0)
    assert counters.ended == {"whole": 3}
    assert [record.results for record in provider.log()] == [0, 2, 3]
    assert provider.log(since=2)[0].body["messages"][-1]["content"] == "w"


def test_reasoning_and_usage_are_there_for_who_asks(provider: SocketProvider) -> None:
    async def story(client: AsyncOpenAI) -> Heard:
        return await listen(client, stream_options={"include_usage": True})

    streamed = talk(provider, story)
    deltas = [choice["delta"] for chunk in streamed.chunks for choice in chunk["choices"]]
    assert "".join(delta.get("reasoning_content") or "" for delta in deltas) == "Let me see…"
    assert streamed.chunks[-1]["usage"]["completion_tokens"] > 0
    assert streamed.text == SPOKEN


def test_a_model_that_is_named_finds_it_through_the_environment(
    provider: SocketProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in provider.environment.items():
        monkeypatch.setenv(name, value)

    async def story() -> list[str]:
        request: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart(str(ASK["content"]))])]
        async with infer_model("openai-chat:scripted") as model, model_request_stream(model, request) as stream:
            _ = [event async for event in stream]
            return [part.part_kind for part in stream.get().parts]

    assert asyncio.run(story()) == ["thinking", "text", "tool-call", "tool-call"]


# faults


@pytest.mark.parametrize(
    ("kind", "expected"), [(FaultKind.RESET, LOST), (FaultKind.HANG_UP, BROKEN_OFF), (FaultKind.END, ("", ""))]
)
def test_at_every_place_of_a_reply_the_client_hears_what_came_before_and_then_the_fault(
    provider: SocketProvider, kind: FaultKind, expected: tuple[str, str]
) -> None:
    whole = heard(provider).chunks
    (record,) = provider.log()
    faults = [fault for fault in every_place(record.sizes) if fault.kind is kind]
    for fault, got in zip(faults, heard_each(provider, faults), strict=True):
        assert fault.event is not None
        is_cut_character = kind is FaultKind.END and got.error == "UnicodeDecodeError" and fault.inside
        if fault.event >= len(whole) + 1:  # the sentinel came: the SDK does not look any further
            assert ending(got) == ("", "")
        else:
            assert ending(got) == expected or is_cut_character
        assert texts(got) == texts(Heard(whole[: fault.event])), fault
    ends = Counter(each.ended for each in provider.log(since=1))
    assert ends == {kind: len(faults)}


def texts(heard: Heard) -> list[Any]:
    """Chunks without what differs between two replies."""
    return [chunk["choices"][0]["delta"]["content"] for chunk in heard.chunks]


def test_a_reset_at_every_byte_of_a_reply_gives_exactly_the_events_that_are_whole_before_it(
    provider: SocketProvider,
) -> None:
    provider.script = Script(otherwise="é→")
    hello = [{"role": "user", "content": "hello"}]
    heard(provider)
    (record,) = provider.log()
    ends = list(accumulate(record.sizes))
    places = range(0, ends[-1] + 1, 3)
    faults = [Fault(kind=FaultKind.RESET, byte=place) for place in places]
    for place, got in zip(places, heard_each(provider, faults, *hello), strict=True):
        whole = sum(end <= place for end in ends)
        assert len(got.chunks) == min(whole, len(ends) - 1)
        assert ending(got) == (("", "") if whole == len(ends) else LOST), place
    assert [each.sent for each in provider.log(since=1)] == list(places)


def test_a_character_that_is_cut_by_a_clean_end_is_an_error_of_decoding(provider: SocketProvider) -> None:
    (at,) = [at for at, frame in enumerate(reply_frames()) if "→".encode() in frame]
    assert ending(heard(provider, Fault(kind=FaultKind.END, event=at, inside=True))) == CUT_CHARACTER


def reply_frames() -> tuple[bytes, ...]:
    return frames(
        [event for event in answer(SCRIPT, [ASK], 1) if not isinstance(event, Usage)], "chatcmpl-1", "scripted"
    )


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        (Fault(kind=FaultKind.RESET), LOST),
        (Fault(kind=FaultKind.HANG_UP), BROKEN_OFF),
        (Fault(kind=FaultKind.REFUSED), REFUSED),
        (Fault(kind=FaultKind.STATUS, status=401, code="invalid_api_key"), ("AuthenticationError", "")),
        (Fault(kind=FaultKind.STATUS, status=429), ("RateLimitError", "")),
        (Fault(kind=FaultKind.STATUS, status=503), ("InternalServerError", "")),
        (Fault(kind=FaultKind.STATUS, status=529), ("InternalServerError", "")),
        (Fault(kind=FaultKind.ERROR), ("APIError", "")),
    ],
)
def test_a_request_may_fail_before_anything_was_said(
    provider: SocketProvider, fault: Fault, expected: tuple[str, str]
) -> None:
    got = heard(provider, fault)
    assert ending(got) == expected
    assert got.chunks == []


def test_too_many_requests_say_when_to_come_again_and_why(provider: SocketProvider) -> None:
    fault = Fault(kind=FaultKind.STATUS, status=429, retry_after="60", message="slow down", code="rate_limit_exceeded")
    provider.set_plan(FaultPlan.at({1: fault}))

    async def story(client: AsyncOpenAI) -> Any:
        try:
            await client.chat.completions.create(model="m", messages=[ASK], stream=True)  # type: ignore[list-item]
        except Exception as error:
            return error

    error = talk(provider, story)
    assert error.response.headers["retry-after"] == "60"
    assert error.body == {"message": "slow down", "type": "server_error", "param": None, "code": "rate_limit_exceeded"}
    assert [each.status for each in provider.log()] == [429]


def test_an_error_in_the_stream_comes_after_what_was_said(provider: SocketProvider) -> None:
    got = heard(provider, Fault(kind=FaultKind.ERROR, event=5, code="server_overloaded"))
    assert ending(got) == ("APIError", "")
    assert len(got.chunks) == 5
    assert provider.log()[0].ended == "error"


def test_before_the_sentinel_a_reset_hides_nothing_but_the_sentinel(provider: SocketProvider) -> None:
    got = heard(provider, Fault(kind=FaultKind.RESET, event=-1))
    assert got.finish == "tool_calls"
    assert ending(got) == LOST


@pytest.mark.parametrize("fault", [Fault(kind=FaultKind.STALL), Fault(kind=FaultKind.STALL, event=4)])
def test_a_stall_is_silence_until_the_client_gives_up_and_the_provider_notices_that_it_left(
    provider: SocketProvider, fault: Fault
) -> None:
    got = heard(provider, fault, timeout=1)
    assert got.error == "APITimeoutError"
    assert len(got.chunks) == (fault.event or 0)
    assert wait_until(provider, ended=1).ended == {"gone": 1}


def test_a_stall_ends_by_itself_or_when_it_is_released(provider: SocketProvider) -> None:
    assert heard(provider, Fault(kind=FaultKind.STALL, event=3, inside=True, duration_ms=20)).text == SPOKEN
    provider.set_plan(FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=3)}))

    async def story(client: AsyncOpenAI) -> Heard:
        asked = asyncio.create_task(listen(client))
        await asyncio.to_thread(wait_until, provider, requests=2, still_open=1)
        await asyncio.to_thread(provider.release, 2)
        return await asked

    assert talk(provider, story).text == SPOKEN
    assert provider.counters().ended == {"whole": 2}
    with pytest.raises(KeyError):
        provider.release(2)


def test_a_client_that_closes_in_the_middle_of_a_slow_reply_is_noticed_at_once(provider: SocketProvider) -> None:
    provider.pace = Pace(first_ms=1, between_ms=60_000)

    async def story(client: AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="m", messages=[ASK], stream=True)  # type: ignore[list-item]
        first = await anext(aiter(stream))
        await stream.close()
        return first.choices[0].delta.role or ""

    assert talk(provider, story) == "assistant"
    assert wait_until(provider, ended=1, still_open=0).ended == {"gone": 1}


def test_nobody_listens_from_the_request_before_the_refused_one_until_the_door_opens(
    provider: SocketProvider,
) -> None:
    async def story(client: AsyncOpenAI) -> list[Heard]:
        found = [await listen(client), await listen(client), await listen(client)]
        await asyncio.to_thread(provider.open_door)
        return [*found, await listen(client)]

    provider.set_plan(FaultPlan.at({2: Fault(kind=FaultKind.REFUSED)}))
    assert [ending(each) for each in talk(provider, story)] == [("", ""), REFUSED, REFUSED, ("", "")]
    assert provider.counters().requests == 2


def test_a_refusal_may_end_by_itself(provider: SocketProvider) -> None:
    async def story(client: AsyncOpenAI) -> Heard:
        provider.set_plan(FaultPlan.at({1: Fault(kind=FaultKind.REFUSED, duration_ms=100)}))
        while (got := await listen(client)).error:
            assert ending(got) == REFUSED
        return got

    assert talk(provider, story).text == SPOKEN


def test_what_a_broken_server_may_send_can_be_said_verbatim(provider: SocketProvider) -> None:
    odd = (Role(), Comment(), Text(text="a"), Raw(text="data: {\n\n"), Finish(), Done())
    provider.script = Script(questions=(ScriptedQuestion(asks="odd", verbatim=(odd, (Comment(), Finish(), Done()))),))

    async def story(client: AsyncOpenAI) -> Heard:
        return await listen(client, [{"role": "user", "content": "odd"}])

    got = talk(provider, story)
    assert (got.text, got.error) == ("a", "JSONDecodeError")


# the log


def test_a_conversation_that_does_not_pair_is_refused_and_marked(provider: SocketProvider) -> None:
    async def story(client: AsyncOpenAI) -> Heard:
        said = await listen(client)
        call, result, _missing = with_results(said, ["r", "s"])
        return await listen(client, [ASK, call, result])

    got = talk(provider, story)
    assert got.error == "BadRequestError"
    record = provider.log()[-1]
    assert not record.is_legal
    assert "no tool message right after the call" in record.problems[0]
    assert provider.counters().illegal == 1


def test_each_request_is_logged_with_what_became_of_it(provider: SocketProvider) -> None:
    heard(provider, Fault(kind=FaultKind.END, event=2))
    (record,) = provider.log()
    assert (record.number, record.asks, record.status) == (1, "take stock", 200)
    assert record.body["messages"] == [ASK]
    assert record.sent == sum(record.sizes[:2])
    assert record.ended_at_ms is not None
    assert record.at_ms <= record.ended_at_ms


def test_many_slow_replies_go_on_at_the_same_time(provider: SocketProvider) -> None:
    count = 50
    provider.script = Script(otherwise="x" * 160, piece_chars=16)
    provider.pace = Pace(first_ms=50, between_ms=10)
    hello = [{"role": "user", "content": "hello"}]

    async def story(client: AsyncOpenAI) -> list[Heard]:
        return await asyncio.gather(*(listen(client, hello) for _ in range(count)))

    assert {each.text for each in talk(provider, story)} == {"x" * 160}
    counters = provider.counters()
    assert counters.open_most == counters.connections == count


# what it does not take


def test_what_it_does_not_take_is_named(provider: SocketProvider) -> None:
    status, told = raw(provider, "POST", "/v1/embeddings", b"{}")
    assert (status, "this server knows POST" in told["error"]["message"]) == (404, True)
    status, told = raw(provider, "POST", "/v1/chat/completions", b"{")
    assert (status, "no JSON that a server takes" in told["error"]["message"]) == (400, True)
    assert provider.counters().illegal == 1


def raw(provider: SocketProvider, method: str, path: str, body: bytes) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(urlsplit(provider.base_url).netloc, timeout=5)
    connection.request(method, path, body)
    response = connection.getresponse()
    told = json.loads(response.read())
    connection.close()
    return response.status, told
