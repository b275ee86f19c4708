from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import messages as lib

from perdure.actors.chat.convert import CONTINUE, UNANSWERED, IllegalRequest, assert_paired, call_result, to_model
from perdure.actors.events.message_parts import apply_chunk
from perdure.ledger import BadRequest
from perdure.policies import Message


def message(role: str, *parts: dict[str, Any]) -> Message:
    return {"id": "m", "role": role, "parts": list(parts)}  # type: ignore[typeddict-item]


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def thought(words: str, **about: Any) -> dict[str, Any]:
    metadata = {"providerMetadata": {"perdure": about}} if about else {}
    return {"type": "reasoning", "text": words, "state": "done", **metadata}


def call(call_id: str, state: str = "output-available", **more: Any) -> dict[str, Any]:
    output = {"output": 1} if state == "output-available" and "output" not in more else {}
    return {
        "type": "tool-x",
        "toolName": "x",
        "toolCallId": call_id,
        "state": state,
        "input": {"a": 1},
        **output,
        **more,
    }


STEP = {"type": "step-start"}
ASK = message("user", text("Hello"))


def shape(history: list[lib.ModelMessage]) -> list[str]:
    """The kinds of parts, an answer in brackets."""
    kinds = [" ".join(part.part_kind for part in each.parts) for each in history]
    return [f"[{kind}]" if each.kind == "response" else kind for kind, each in zip(kinds, history, strict=True)]


def only(kind: type, history: list[lib.ModelMessage]) -> list[Any]:
    return [part for each in history for part in each.parts if isinstance(part, kind)]


def test_each_step_is_an_answer_followed_by_the_results_of_its_calls() -> None:
    turn = message("assistant", STEP, text("I look."), call("c1"), call("c2"), STEP, text("Done."))
    history = to_model([ASK, turn, message("user", text("Thanks"))])
    assert shape(history) == [
        "user-prompt",
        "[text tool-call tool-call]",
        "tool-return tool-return",
        "[text]",
        "user-prompt",
    ]
    assert only(lib.ToolCallPart, history)[0].args == {"a": 1}
    assert only(lib.ToolReturnPart, history)[0].content == 1


def test_without_marks_words_after_a_call_begin_the_next_answer() -> None:
    history = to_model([ASK, message("assistant", call("c1"), text("Done.")), ASK])
    assert shape(history) == ["user-prompt", "[tool-call]", "tool-return", "[text]", "user-prompt"]


def test_answers_with_nothing_between_them_are_one() -> None:
    history = to_model(
        [ASK, message("assistant", STEP, text("a"), STEP, text("b")), message("assistant", text("c")), ASK]
    )
    assert shape(history) == ["user-prompt", "[text text]", "user-prompt"]


def test_a_text_that_broke_off_and_went_on_is_one_for_the_model() -> None:
    """As two parts the library puts blank lines between them, so a second break would show the model a text that it never said."""
    turn = message("assistant", STEP, text("It broke o"), STEP, text("ff, and ag"), STEP, text("ain."))
    (answer,) = only(lib.TextPart, to_model([ASK, turn, ASK]))
    assert answer.content == "It broke off, and again."
    apart = to_model([ASK, turn, message("assistant", STEP, text("Another.")), ASK])
    assert len(only(lib.TextPart, apart)) == 2, "messages stay apart"


def test_the_last_word_is_never_the_models_own() -> None:
    history = to_model([ASK, message("assistant", text("Once upon"))])
    assert only(lib.UserPromptPart, history)[-1].content == CONTINUE
    assert (
        only(lib.UserPromptPart, to_model([message("assistant", text("a"))], last_word="Go on"))[-1].content == "Go on"
    )


def test_what_says_nothing_is_left_out() -> None:
    empty = message(
        "assistant", STEP, text(""), {"type": "source-url", "sourceId": "1", "url": "u"}, {"type": "data-x", "data": 1}
    )
    assert shape(to_model([ASK, empty, message("user", {"type": "data-x", "data": 1})])) == ["user-prompt"]


def test_there_must_be_something_to_send() -> None:
    for nothing in ([], [message("user", text(""))]):
        with pytest.raises(BadRequest, match="messages: there is nothing"):
            to_model(nothing)


def test_a_system_message_is_one() -> None:
    assert shape(to_model([message("system", text("a"), text("b")), ASK])) == ["system-prompt user-prompt"]


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize(
    ("part", "content", "outcome"),
    [
        (call("c", output={"rows": []}), {"rows": []}, "success"),
        (call("c", output=None), None, "success"),
        (call("c", "input-available", result="kept in the old way"), "kept in the old way", "success"),
        (call("c", "output-error", errorText="OUTCOME UNKNOWN: ask."), "OUTCOME UNKNOWN: ask.", "failed"),
        (
            call("c", "output-error", errorText="OUTCOME UNKNOWN.", output={"n": 1}),
            'OUTCOME UNKNOWN.\n\nOutput so far:\n{"n": 1}',
            "failed",
        ),
        (call("c", errorText="STILL RUNNING.", output="line"), "STILL RUNNING.\n\nOutput so far:\nline", "failed"),
        (call("c", "output-error"), "The call failed for an unknown reason.", "failed"),
        (call("c", "output-denied"), "The user declined this call. It was not executed.", "denied"),
        (
            call("c", "output-denied", approval={"approved": False, "reason": "too dear"}),
            "The user declined this call. It was not executed. Reason given: too dear",
            "denied",
        ),
        (call("c", "approval-requested"), UNANSWERED, "interrupted"),
        (call("c", "input-available"), UNANSWERED, "interrupted"),
    ],
)  # fmt: skip
def test_a_call_has_a_result_whatever_became_of_it(part: dict[str, Any], content: object, outcome: str) -> None:
    assert call_result(part) == (content, outcome)
    (returned,) = only(lib.ToolReturnPart, to_model([ASK, message("assistant", part)]))
    assert (returned.content, returned.outcome) == (content, outcome)


def test_a_call_whose_arguments_broke_off_was_never_made() -> None:
    assert shape(to_model([ASK, message("assistant", text("Hm"), call("c", "input-streaming")), ASK]))[1] == "[text]"


def test_ids_are_unique_and_such_as_every_provider_takes() -> None:
    turn = message("assistant", STEP, call("c1"), call("c1"), STEP, call("c1"), call("a b:0"), call("x" * 80))
    history = to_model([ASK, turn])
    assert_paired(history)
    ids = [part.tool_call_id for part in only(lib.ToolCallPart, history)]
    assert (ids[0], ids[3], len(set(ids))) == ("c1", "a_b_0", 5)
    assert max(map(len, ids)) <= 64


@pytest.mark.shows(transport_recovery="A18")
def test_a_provider_gets_its_own_ids_back_and_another_gets_readable_ones() -> None:
    own = call("functions.x:0", callProviderMetadata={"perdure": {"provider": "moonshotai"}})
    for provider, expected in (
        ("moonshotai", "functions.x:0"),
        ("anthropic", "functions_x_0"),
        (None, "functions_x_0"),
    ):
        (made,) = only(lib.ToolCallPart, to_model([ASK, message("assistant", own)], provider=provider))
        assert made.tool_call_id == expected


def test_names_and_inputs_are_such_as_providers_take() -> None:
    odd = [call("c1", toolName="get it!", input="text"), call("c2", toolName="", input='{"a":2}')]
    calls = only(lib.ToolCallPart, to_model([ASK, message("assistant", *odd)]))
    assert [(each.tool_name, each.args) for each in calls] == [("get_it_", {}), ("unnamed", {"a": 2})]


def test_what_the_provider_executed_itself_is_no_call_of_ours() -> None:
    about = {"callProviderMetadata": {"perdure": {"provider": "openai", "id": "ws_1"}}}
    history = to_model([ASK, message("assistant", call("n1", providerExecuted=True, **about), text("x")), ASK])
    assert shape(history)[1] == "[builtin-tool-call builtin-tool-return text]"
    assert_paired(history)
    unfinished = call("n1", "input-available", providerExecuted=True)
    assert shape(to_model([ASK, message("assistant", unfinished, text("x")), ASK]))[1] == "[text]"


# ---------------------------------------------------------------- thoughts


def test_a_signed_thought_goes_back_with_its_signature() -> None:
    signed = thought("hm", provider="anthropic", signature="SIG", details={"a": 1}, canonical="aws")
    history = to_model([ASK, message("assistant", signed, text("x")), ASK])
    (sent,) = only(lib.ThinkingPart, history)
    assert (sent.content, sent.signature, sent.provider_name, sent.provider_details) == (
        "hm",
        "SIG",
        "anthropic",
        {"a": 1},
    )
    answer = history[1]
    assert isinstance(answer, lib.ModelResponse)
    assert (answer.provider_name, answer.canonical_system) == ("anthropic", "aws")


def test_a_thought_that_is_unsigned_or_led_to_nothing_stays_behind() -> None:
    signed = thought("hm", provider="anthropic", signature="SIG")
    assert shape(to_model([ASK, message("assistant", thought("hm"), text("x"), signed), ASK]))[1] == "[text]"


def test_a_thought_that_is_bound_to_what_followed_stays_behind_without_it() -> None:
    bound = thought("hm", provider="openai", id="rs_1", signature="ENC")
    whole = text("x", providerMetadata={"perdure": {"provider": "openai", "id": "msg_1"}})
    assert shape(to_model([ASK, message("assistant", bound, whole), ASK]))[1] == "[thinking text]"
    assert shape(to_model([ASK, message("assistant", bound, text("x")), ASK]))[1] == "[text]"


def test_an_answer_that_never_ended_is_not_on_its_providers_books() -> None:
    openai = [
        thought("hm", provider="openai", id="rs_1"),
        call("c", callProviderMetadata={"perdure": {"provider": "openai", "id": "fc_1"}}),
    ]
    anthropic = [thought("hm", provider="anthropic", signature="SIG"), call("c")]
    broken = {"type": "finish-step", "finishReason": "interrupted"}
    history = to_model([ASK, message("assistant", *apply_chunk(openai, broken))])
    assert shape(history)[1] == "[tool-call]"
    assert only(lib.ToolCallPart, history)[0].id is None
    assert apply_chunk(anthropic, broken) is anthropic
    assert apply_chunk(openai, {"type": "finish-step", "finishReason": "stop"}) is openai
    earlier = [*openai, {"type": "step-start"}]
    assert apply_chunk(earlier, broken) is earlier


# ---------------------------------------------------------------- files


@pytest.mark.parametrize(
    ("url", "kind", "sent"),
    [
        ("data:image/png;base64,AAE=", "image/png", lib.BinaryContent(b"\x00\x01", media_type="image/png")),
        ("data:text/plain,a%20b", "text/plain", lib.BinaryContent(b"a b", media_type="text/plain")),
        ("https://a.example/x", "image/png", lib.ImageUrl("https://a.example/x", media_type="image/png")),
        ("https://a.example/x", "audio/wav", lib.AudioUrl("https://a.example/x", media_type="audio/wav")),
        ("https://a.example/x", "video/mp4", lib.VideoUrl("https://a.example/x", media_type="video/mp4")),
        (
            "https://a.example/x",
            "application/pdf",
            lib.DocumentUrl("https://a.example/x", media_type="application/pdf"),
        ),
        ("data:image/png;base64,A", "image/png", "[The file image/png cannot be read.]"),
        ("data:image/png", "image/png", "[The file image/png cannot be read.]"),
        ("blob:1", "image/png", "[The file image/png is at blob:1, which cannot be reached.]"),
    ],
)
def test_files_are_sent_as_what_they_are(url: str, kind: str, sent: Any) -> None:
    (prompt,) = only(
        lib.UserPromptPart, to_model([message("user", text("See"), {"type": "file", "mediaType": kind, "url": url})])
    )
    assert list(prompt.content) == ["See", sent]


# ---------------------------------------------------------------- the last look


def answer(*ids: str) -> lib.ModelResponse:
    return lib.ModelResponse(parts=[lib.ToolCallPart("x", {}, each) for each in ids])


def results(*ids: str) -> lib.ModelRequest:
    return lib.ModelRequest(parts=[lib.ToolReturnPart("x", 1, each) for each in ids])


@pytest.mark.parametrize(
    ("history", "problem"),
    [
        ([answer("a")], "there is no result of a"),
        ([answer("a"), results()], "the calls are .*'a'.*none"),
        ([answer("a"), results("a", "a")], "but the results are of"),
        ([answer("a"), results("b")], "but the results are of"),
        ([results("a")], "the calls are none"),
        ([answer("a"), answer("b"), results("a", "b")], "another answer comes before the results of a"),
        ([answer("a", "a"), results("a", "a")], "the id a names two calls"),
        ([answer("a"), results("a"), answer("a"), results("a")], "the id a names two calls"),
    ],
)
def test_a_request_that_providers_would_refuse_is_never_sent(history: list[lib.ModelMessage], problem: str) -> None:
    with pytest.raises(IllegalRequest, match=problem):
        assert_paired(history)


IDS = st.sampled_from(["c1", "c2", "a b", "", "x" * 70])
STATES = st.sampled_from(
    [
        "input-streaming",
        "input-available",
        "approval-requested",
        "approval-responded",
        "output-available",
        "output-error",
        "output-denied",
        "odd",
    ]
)
ABOUT = st.sampled_from(
    [
        {},
        {"perdure": {"provider": "openai", "id": "rs_1"}},
        {"perdure": {"provider": "anthropic", "signature": "s"}},
        {"other": 1},
    ]
)
ERRORS = st.sampled_from([{}, {"errorText": "E"}])
PARTS = st.one_of(
    st.just(STEP),
    st.sampled_from(["", "a"]).map(text),
    ABOUT.map(lambda about: {"type": "reasoning", "text": "r", "providerMetadata": about}),
    st.builds(lambda i, s, e, about: call(i, s, callProviderMetadata=about, **e), IDS, STATES, ERRORS, ABOUT),
    st.just(call("n", providerExecuted=True)),
    st.just({"type": "data-x", "data": 1}),
)  # fmt: skip
MESSAGES = st.lists(
    st.tuples(st.sampled_from(["user", "assistant", "system"]), st.lists(PARTS, max_size=6)), max_size=5
)


@given(MESSAGES, st.sampled_from([None, "openai"]))
def test_whatever_a_transcript_holds_the_request_is_legal(
    rows: list[tuple[str, list[dict[str, Any]]]], provider: str | None
) -> None:
    transcript = [message("user", text("Hi")), *(message(role, *parts) for role, parts in rows)]
    history = to_model(transcript, provider=provider)
    assert_paired(history)
    assert history[-1].kind == "request"
    assert all(each.parts for each in history)
    assert all(a.kind != b.kind for a, b in itertools.pairwise(history) if "request" in (a.kind, b.kind))
