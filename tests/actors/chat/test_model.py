from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
from collections.abc import AsyncIterator
from functools import reduce
from typing import Any

import pytest
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ThinkingPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from perdure.actors.chat.answer_stream import Finished
from perdure.actors.chat.model import UnusableModel, close_models, load_library, resolve_model, stream_model
from perdure.actors.chat.tools import ToolSpec
from perdure.actors.chat.turn_failures import ModelFailed
from perdure.actors.events.message_parts import apply_chunk
from perdure.ledger import BadRequest, Secret, plain_without_secrets
from perdure.policies import Failure, FailureKind, Message, Part
from perdure.policies.failures import ApiKind
from tests.actors.chat.fake_provider import (
    BEGIN,
    CHUNKED,
    HANG,
    HELLO,
    RESET,
    USAGE,
    FakeProvider,
    asked,
    call,
    delta,
    refusal,
    sse,
)
from tests.actors.chat.fake_responses import ANSWER, COMPLETED, FAILED, INCOMPLETE, named

WEATHER = ToolSpec(
    "weather", "Ask.", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
)
ULM = '{"city":"Ulm"}'
Setenv = Any


@pytest.fixture
def setenv(monkeypatch: pytest.MonkeyPatch) -> Setenv:
    return monkeypatch.setenv


def ask(setenv: Setenv, *script: bytes | str, **options: Any) -> list[Any]:
    return asked(FakeProvider(script), setenv, tools=[WEATHER], **options)


def failing(setenv: Setenv, *script: bytes | str, **options: Any) -> Failure:
    with pytest.raises(ModelFailed) as failed:
        ask(setenv, *script, **options)
    return failed.value.failure


def folded(chunks: list[Any]) -> list[Part]:
    return reduce(apply_chunk, chunks[:-1], [{"type": "step-start"}])


# ---------------------------------------------------------------- answers


def test_a_text_is_streamed_and_ends_with_its_reason_and_what_it_cost(setenv: Setenv) -> None:
    chunks = ask(
        setenv,
        BEGIN,
        sse(
            delta(role="assistant", content=""),
            delta(content="Hi "),
            delta(content="you"),
            delta("stop"),
            USAGE,
            "[DONE]",
        ),
    )
    assert [chunk.get("delta") for chunk in chunks[:-1]] == [None, "Hi ", "you", None]
    assert chunks[-1] == Finished("stop", {"input_tokens": 3, "output_tokens": 4}, "r1")


def test_what_is_asked_reaches_the_provider(setenv: Setenv) -> None:
    provider = FakeProvider((BEGIN, sse(delta("stop"))))
    asked(provider, setenv, tools=[WEATHER], instructions="Be kind.", settings={"temperature": 0.5})
    (request,) = provider.requests
    assert request["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
    assert request["temperature"] == 0.5
    assert request["tools"][0]["function"]["name"] == "weather"


def test_thoughts_and_parallel_calls_are_told_apart(setenv: Setenv) -> None:
    events = [
        delta(reasoning_content="hm"),
        delta(content="I look."),
        call(0, "", "c1", "weather"),
        call(0, ULM),
        call(1, ULM, "c2", "weather"),
    ]
    chunks = ask(setenv, BEGIN, sse(*events, delta("tool_calls"), "[DONE]"))
    parts = folded(chunks)
    assert [part["type"] for part in parts] == ["step-start", "reasoning", "text", "tool-weather", "tool-weather"]
    assert [part.get("input") for part in parts[3:]] == [{"city": "Ulm"}] * 2
    assert chunks[-1].reason == "tool_call"


def test_a_call_is_given_out_though_the_provider_calls_the_end_a_stop(setenv: Setenv) -> None:
    assert ask(setenv, BEGIN, sse(call(0, ULM, "c1", "weather"), delta("stop")))[-1].reason == "tool_call"


@pytest.mark.parametrize(
    "calls",
    [
        [call(0, '{"ci', "c1", "weather")],
        [call(0, ULM, "c1", "weather"), call(0, ULM)],
        [call(0, ULM, "c1", "wetter")],
        [call(0, "", "c1", "weather")],
    ],
)
def test_a_call_that_cannot_be_used_is_an_error_for_the_model(setenv: Setenv, calls: list[dict[str, Any]]) -> None:
    (part,) = folded(ask(setenv, BEGIN, sse(*calls, delta("tool_calls"))))[1:]
    assert part["state"] == "output-error"
    assert part["errorText"].startswith("This call was not executed:")


def test_a_length_that_was_reached_keeps_the_last_call_from_being_executed(setenv: Setenv) -> None:
    chunks = ask(setenv, BEGIN, sse(call(0, ULM, "c1", "weather"), call(1, ULM, "c2", "weather"), delta("length")))
    assert [part["state"] for part in folded(chunks)[1:]] == ["input-available", "output-error"]
    assert chunks[-1].reason == "length"


def test_ids_that_a_transcript_has_are_not_used_again(setenv: Setenv) -> None:
    used = {
        "type": "tool-weather",
        "toolName": "weather",
        "toolCallId": "c1",
        "state": "output-available",
        "input": {},
        "output": 1,
    }
    messages: list[Message] = [
        *HELLO,
        {"id": "a", "role": "assistant", "parts": [used, {**used, "toolCallId": "c2"}]},
        {**HELLO[0], "id": "u2"},
    ]
    script = BEGIN, sse(call(0, ULM, "c1", "weather"), call(1, ULM, "c2", "weather"), delta("stop"))
    ids = {part["toolCallId"] for part in folded(ask(setenv, *script, messages=messages))[1:]}
    assert len(ids) == 2
    assert not ids & {"c1", "c2"}


# ---------------------------------------------------------------- the end of an answer


@pytest.mark.shows(transport_recovery="A9 B5")
@pytest.mark.parametrize("more", [[], ["[DONE]"]])
def test_the_end_of_a_stream_is_not_the_end_of_an_answer(setenv: Setenv, more: list[str]) -> None:
    failure = failing(setenv, BEGIN, sse(delta(content="Hi "), *more))
    assert (failure.kind, failure.is_transient) == (FailureKind.STREAM_END, True)


def test_a_call_whose_stream_ends_is_not_given_out(setenv: Setenv) -> None:
    async def ask_and_collect() -> list[Any]:
        provider, chunks = FakeProvider((BEGIN, sse(call(0, ULM, "c1", "weather")))), list[Any]()
        async with provider.running() as url:
            setenv("OPENAI_BASE_URL", url)
            setenv("OPENAI_API_KEY", "k")
            with contextlib.suppress(ModelFailed):
                async for chunk in stream_model("openai-chat:m", HELLO, tools=[WEATHER]):
                    chunks.append(chunk)
        return chunks

    assert [chunk["type"] for chunk in asyncio.run(ask_and_collect())] == ["tool-input-start", "tool-input-delta"]


@pytest.mark.shows(transport_recovery="A9")
def test_a_connection_that_breaks_after_the_reason_came_broke_nothing(setenv: Setenv) -> None:
    assert ask(setenv, BEGIN, sse(delta(content="Hi"), delta("stop")), RESET)[-1] == Finished("stop", {}, "r1")


def test_a_provider_that_keeps_the_line_open_after_the_reason_is_not_waited_for(setenv: Setenv) -> None:
    assert ask(setenv, BEGIN, sse(delta(content="Hi"), delta("stop")), HANG, tail_s=0.05)[-1].reason == "stop"


def test_an_error_that_may_pass_after_the_reason_changes_nothing(setenv: Setenv) -> None:
    error = {"error": {"message": "busy", "type": "server_error", "code": "overloaded"}}
    assert ask(setenv, BEGIN, sse(delta(content="Hi"), delta("stop"), error))[-1].reason == "stop"


def test_an_error_after_the_reason_is_an_error(setenv: Setenv) -> None:
    error = {"error": {"message": "no", "code": "invalid_prompt"}}
    assert failing(setenv, BEGIN, sse(delta(content="Hi"), delta("stop"), error)).is_transient is False


def test_a_reason_that_the_library_does_not_know_is_one(setenv: Setenv) -> None:
    assert ask(setenv, BEGIN, sse(call(0, ULM, "c1", "weather"), delta("eos")))[-1].reason == "tool_call"
    assert ask(setenv, BEGIN, sse(delta(content="x"), delta("max_tokens")))[-1].reason == "length"


def test_a_call_without_a_name_is_not_lost_in_silence(setenv: Setenv) -> None:
    for more in ([], [delta(content="x")]):
        failure = failing(setenv, BEGIN, sse(call(0, ULM, "c1"), *more, delta("tool_calls")))
        assert (failure.kind, failure.is_transient) == (FailureKind.STREAM_END, True)


def test_words_for_a_call_that_was_given_out_break_the_answer(setenv: Setenv) -> None:
    late = [call(0, ULM, "c1", "weather"), call(1, "", "c2", "weather"), call(0, "{}")]
    failure = failing(setenv, BEGIN, sse(*late, delta("tool_calls")))
    assert (failure.kind, "weather" in failure.text) == (FailureKind.IN_BAND, True)


# ---------------------------------------------------------------- failures


@pytest.mark.parametrize(
    "script",
    [
        [BEGIN, sse(delta(content="Hi ")), RESET],
        [RESET],
        [CHUNKED, b'100\r\ndata: {"cho', RESET],
        [CHUNKED, b'100\r\ndata: {"cho'],
        [BEGIN, b'data: {"cho\n\n'],
        [BEGIN, b"data: null\n\n"],
        [BEGIN, b"data: [1]\n\n"],
        [BEGIN, sse(delta(content="Hi ")), b"data: null\n\n"],
        [BEGIN, b'data: {"choices":[{"delta":{"content":"\xff"}}]}\n\n'],
    ],
)
def test_a_connection_that_breaks_or_garbles_is_a_failure_that_may_pass(
    setenv: Setenv, script: list[bytes | str]
) -> None:
    failure = failing(setenv, *script)
    assert (failure.is_transient, failure.is_transport) == (True, True), failure


@pytest.mark.parametrize(
    ("status", "api", "is_transient"),
    [
        (401, ApiKind.AUTH, False),
        (429, ApiKind.RATE_LIMIT, True),
        (503, ApiKind.SERVER_OVERLOAD, True),
        (400, ApiKind.INVALID_REQUEST, False),
    ],
)
def test_a_refusal_is_judged_by_its_status_and_asked_for_once(
    setenv: Setenv, status: int, api: ApiKind, is_transient: bool
) -> None:
    provider = FakeProvider((refusal(status, {"error": {"message": "no"}}, **{"Retry-After": "7"}),))
    with pytest.raises(ModelFailed) as failed:
        asked(provider, setenv)
    failure = failed.value.failure
    assert (failure.api, failure.is_transient, failure.retry_after_ms) == (api, is_transient, 7000)
    assert f"answered {status}" in failure.text
    assert len(provider.requests) == 1


def test_an_error_inside_a_stream_is_judged_by_its_code(setenv: Setenv) -> None:
    error = {"error": {"message": "busy", "type": "server_error", "code": "overloaded"}}
    failure = failing(setenv, BEGIN, sse(delta(content="Hi "), error))
    assert (failure.api, failure.is_transient) == (ApiKind.SERVER_OVERLOAD, True)


WHOLE = {"choices": [{"message": {"role": "assistant", "content": "whole"}}]}
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: {}\r\nContent-Length: {}\r\n\r\n"
NONE = {
    "a page": ("text/html", b"<html>\n Login </html>", "text/html: <html> Login </html>"),
    "a whole answer": ("application/json", json.dumps(WHOLE).encode(), 'application/json: {"choices": [{"message":'),
    "the sentinel alone": ("text/event-stream", b"data: [DONE]\n\n", "text/event-stream: data: [DONE]"),
    "nothing": ("text/event-stream", b"", "text/event-stream, and is empty"),
    "a packed page": ("text/html\r\nContent-Encoding: gzip", gzip.compress(b"<html>"), "in it: text/html; check"),
}


@pytest.mark.parametrize(("kind", "body", "words"), NONE.values(), ids=NONE)
def test_what_is_no_stream_is_told_from_a_broken_one(setenv: Setenv, kind: str, body: bytes, words: str) -> None:
    """The connection was fine: it is said what came instead."""
    failure = failing(setenv, HEAD.format(kind, len(body)).encode(), body)
    assert (failure.kind, failure.is_transient, failure.is_transport) == (FailureKind.NO_ANSWER, True, False)
    assert words in failure.text
    assert failure.text.endswith("; check the provider's address, and that it can stream")


@pytest.mark.parametrize("before", [b"", sse(delta(role="assistant"))])
def test_a_stream_of_events_that_may_have_been_cut_off_is_a_broken_one(setenv: Setenv, before: bytes) -> None:
    assert failing(setenv, BEGIN, before).kind is FailureKind.STREAM_END


def test_an_answer_without_end_is_broken_off(setenv: Setenv) -> None:
    long = [sse(delta(content="x" * 100_000)) for _ in range(20)]
    assert "so it was broken off" in failing(setenv, BEGIN, *long, bytes_max=1_000_000).text


def test_one_line_without_end_is_broken_off_before_it_fills_the_memory(
    setenv: Setenv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.actors.chat.model._WIRE_BYTES_MAX", 2_000_000)
    assert "so it was broken off" in failing(setenv, BEGIN, *[b"x" * 500_000] * 10).text
    refused = b"HTTP/1.1 500 No\r\nContent-Length: 5000000\r\n\r\n"
    assert "so it was broken off" in failing(setenv, refused, *[b"x" * 500_000] * 10).text


# ---------------------------------------------------------------- closing


def leaving(setenv: Setenv, *, cancel: bool) -> None:
    """Leave an answer in the middle, and see that the provider hears of it at once."""

    async def leave() -> None:
        provider = FakeProvider((BEGIN, sse(delta(content="Hi ")), HANG))
        async with provider.running() as url:
            setenv("OPENAI_BASE_URL", url)
            setenv("OPENAI_API_KEY", "k")
            stream: Any = stream_model("openai-chat:m", HELLO)
            await anext(stream)
            await anext(stream)
            if cancel:
                waiting = asyncio.create_task(anext(stream))
                await asyncio.wait([waiting], timeout=0.05)
                waiting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiting
            await stream.aclose()
            await provider.closed.wait()

    asyncio.run(asyncio.wait_for(leave(), 20))


@pytest.mark.parametrize("cancel", [False, True])
def test_whoever_stops_reading_closes_the_socket(setenv: Setenv, cancel: bool) -> None:
    leaving(setenv, cancel=cancel)


# ---------------------------------------------------------------- the responses of OpenAI


def test_an_answer_of_the_responses_api_is_read_and_sent_back_with_what_belongs_to_it(setenv: Setenv) -> None:
    chunks = ask(setenv, BEGIN, named(*ANSWER, COMPLETED), model="openai:gpt-5")
    assert chunks[-1] == Finished("tool_call", {"input_tokens": 3, "output_tokens": 4}, "resp_1")
    parts = apply_chunk(folded(chunks), {"type": "tool-output-available", "toolCallId": "call_1", "output": {"t": 1}})
    provider = FakeProvider((BEGIN, named(COMPLETED)))
    asked(
        provider,
        setenv,
        model="openai:gpt-5",
        tools=[WEATHER],
        messages=[*HELLO, {"id": "a", "role": "assistant", "parts": parts}],
    )
    sent = [
        (each.get("type"), each.get("id"), each.get("encrypted_content")) for each in provider.requests[0]["input"][1:]
    ]
    assert sent == [
        ("reasoning", "rs_1", "ENC"),
        ("message", "msg_1", None),
        ("function_call", "fc_1", None),
        ("function_call_output", None, None),
    ]


def test_the_responses_api_ends_with_an_event_and_not_with_the_stream(setenv: Setenv) -> None:
    assert failing(setenv, BEGIN, named(*ANSWER), model="openai:gpt-5").kind is FailureKind.STREAM_END
    assert ask(setenv, BEGIN, named(*ANSWER, INCOMPLETE), model="openai:gpt-5")[-1].reason == "length"
    assert failing(setenv, BEGIN, named(*ANSWER, FAILED), model="openai:gpt-5").api is ApiKind.SERVER_OVERLOAD


# ---------------------------------------------------------------- models


def said_by(model: object, messages: list[Message] = HELLO, **options: Any) -> list[Any]:
    async def ask_it() -> list[Any]:
        try:
            return [each async for each in stream_model(model, messages, **options)]
        finally:
            await close_models()

    return asyncio.run(ask_it())


async def hello(_messages: object, _info: object) -> AsyncIterator[str]:
    yield "Hello "
    yield "you"


@pytest.mark.parametrize(
    "model", [FunctionModel(stream_function=hello), FallbackModel(FunctionModel(stream_function=hello))]
)
def test_a_model_of_this_process_needs_no_reason_to_end(model: object) -> None:
    chunks = said_by(model)
    assert "".join(chunk.get("delta", "") for chunk in chunks[:-1]) == "Hello you"
    assert chunks[-1].reason == "stop"


def whole(messages: list[ModelMessage], _info: object) -> ModelResponse:
    """An answer in one piece: a call first, then words."""
    if len(messages) > 1:
        raise ModelHTTPError(503, "whole")
    parts = [ThinkingPart("Hm."), TextPart("Hello you"), ToolCallPart("weather", ULM, "c")]
    return ModelResponse(parts, usage=RequestUsage(output_tokens=3), provider_url="https://example.com")


class OnlyWhole(Model):
    """Answers requests, and has no streams."""

    model_name, system = "whole", "test"

    async def request(self, messages: list[ModelMessage], *_: Any) -> ModelResponse:
        return whole(messages, None)


class SaysSo(OnlyWhole):
    """Says so itself."""

    @contextlib.asynccontextmanager
    async def request_stream(self, *_: Any) -> AsyncIterator[Any]:
        raise NotImplementedError("no streams here")
        yield


class Suspending(TestModel):
    """Its provider pauses in the middle of its answer."""

    @contextlib.asynccontextmanager
    async def request_stream(self, *asked: Any) -> AsyncIterator[Any]:
        async with super().request_stream(*asked) as stream:
            stream.state = "suspended"
            yield stream


def test_an_answer_that_its_provider_suspends_ends_in_words_that_say_what_to_do() -> None:
    with pytest.raises(ModelFailed, match=r"suspended its answer.*: ask for less at once, or allow these tools fewer"):
        said_by(Suspending())


@pytest.mark.parametrize(
    "model",
    [
        FunctionModel(whole),
        OnlyWhole(),
        SaysSo(),
        WrapperModel(FunctionModel(whole)),
        FallbackModel(FunctionModel(whole), TestModel()),
        FallbackModel(SaysSo()),
    ],
)
def test_a_model_without_streams_is_asked_for_the_whole_answer(model: Model) -> None:
    chunks = said_by(model, tools=[WEATHER])
    deltas = [chunk["delta"] for chunk in chunks[:-1] if "delta" in chunk]
    assert deltas == ["Hm.", "Hello you"]
    assert [chunk["input"] for chunk in chunks[:-1] if chunk["type"] == "tool-input-available"] == [{"city": "Ulm"}]
    assert (chunks[-1].reason, chunks[-1].usage) == ("tool_call", {"output_tokens": 3})


def test_what_a_model_without_streams_fails_with_is_judged_as_ever() -> None:
    answer: Message = {"id": "a", "role": "assistant", "parts": [{"type": "text", "text": "Yes?"}]}
    with pytest.raises(ModelFailed) as failed:
        said_by(FunctionModel(whole), [*HELLO, answer, *HELLO])
    assert failed.value.failure.is_transient


def test_a_model_may_be_known_by_a_name_alone() -> None:
    assert said_by("test", tools=[WEATHER])[-1].reason == "tool_call"
    assert said_by(TestModel(call_tools=[]))[-1].reason == "stop"


def test_a_model_object_gets_new_connections_on_another_loop() -> None:
    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url="http://localhost/v1", api_key="k"))

    async def look_up() -> object:
        assert resolve_model(model) is model
        client = vars(model.client)["_client"]
        assert resolve_model(model) is model
        assert vars(model.client)["_client"] is client
        return client

    assert asyncio.run(look_up()) is not asyncio.run(look_up())


def test_a_model_object_is_asked_on_one_loop_after_the_other() -> None:
    model = OpenAIChatModel("m", provider=OpenAIProvider(base_url="http://replaced", api_key="k"))

    async def use() -> Any:
        async with FakeProvider((BEGIN, sse(delta("stop")))).running() as url:
            model.client.base_url = url
            return [each async for each in stream_model(model, HELLO)][-1]

    assert [asyncio.run(use()).reason for _ in range(2)] == ["stop", "stop"]


def test_a_name_is_looked_up_once_per_loop(setenv: Setenv) -> None:
    setenv("OPENAI_API_KEY", "k")

    async def look_up() -> object:
        first = resolve_model("openai:gpt-5")
        assert resolve_model("openai:gpt-5") is first
        await close_models()
        await close_models()
        return first

    assert asyncio.run(look_up()) is not asyncio.run(look_up())


def test_a_key_is_taken_by_reference_and_struck_out_wherever_it_came_from(setenv: Setenv) -> None:
    setenv("OPENAI_API_KEY", "sk-of-the-environment")
    setenv("SHOP_KEY", "sk-of-the-shop")
    setenv("PYDANTIC_AI_GATEWAY_BASE_URL", "http://127.0.0.1:1")
    for name in ("openai:gpt-5", "gateway/openai:gpt-5"):
        by_reference: Any = resolve_model(name, Secret("SHOP_KEY"))
        assert by_reference.client.api_key == "sk-of-the-shop"
    assert resolve_model("openai:gpt-5").model_name == "gpt-5"
    assert plain_without_secrets("sk-of-the-shop sk-of-the-environment") == "*" * 14 + " " + "*" * 21
    with pytest.raises(UnusableModel, match="it needs OPENAI_KEY, which is not set"):
        resolve_model("openai:gpt-5", Secret("OPENAI_KEY"))


def test_outside_of_a_loop_a_name_is_looked_up_all_the_same(setenv: Setenv) -> None:
    setenv("OPENAI_API_KEY", "k")
    assert resolve_model("openai:gpt-5").model_name == "gpt-5"


@pytest.mark.parametrize(
    "model", ["openai:gpt-5", "gateway/anthropic:x", "azure-responses:x", "nobody:x", "", TestModel(), None]
)
def test_loading_ahead_is_never_wrong(model: object) -> None:
    load_library(model)


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("openai:gpt-5", "openai:gpt-5: it needs OPENAI_API_KEY, which is not set"),
        ("deepseek:x", "deepseek:x: it needs DEEPSEEK_API_KEY, which is not set"),
        ("anthropic:x", r"anthropic:x: (its package is not installed: pip install|it needs ANTHROPIC_API_KEY)"),
        ("gateway/openai:x", "it needs PYDANTIC_AI_GATEWAY_API_KEY"),
        ("openia:gpt-5", r"openia:gpt-5: Unknown model: openia:gpt-5. Did you mean '.*'\?"),
        ("gpt-5", "gpt-5: Unknown model: gpt-5"),
        (" ", "' ' is neither the name of a model nor a model"),
        (3, "3 is neither the name of a model nor a model"),
    ],
)
def test_a_model_that_cannot_be_used_says_in_one_line_what_it_lacks(
    model: object, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "DEEPSEEK_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    async def look_up() -> None:
        resolve_model(model)

    with pytest.raises(UnusableModel, match=problem) as unusable:
        asyncio.run(look_up())
    assert (unusable.value.field, str(unusable.value).count("\n")) == ("model", 0)
    with pytest.raises(ModelFailed, match=problem) as failed:
        said_by(model)
    is_key = re.search("needs .*KEY", failed.value.failure.text) is not None
    assert failed.value.failure.kind is (FailureKind.MISSING_KEY if is_key else FailureKind.SETUP)


def test_mistakes_of_the_caller_are_not_failures_of_the_model() -> None:
    async def ask_nothing() -> None:
        async for _ in stream_model("test", []):
            raise AssertionError(json.dumps("nothing can be answered"))

    with pytest.raises(BadRequest, match="messages"):
        asyncio.run(ask_nothing())
