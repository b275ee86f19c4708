from __future__ import annotations

import json
from collections.abc import Iterable
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_ai import messages as lib

from perdure.actors.chat.answer_reader import AnswerReader, BadArguments, CallReader, arguments_in
from perdure.actors.chat.tools import ToolSpec
from perdure.actors.chat.turn_failures import ModelFailed
from perdure.actors.events.message_parts import Chunk, apply_chunk

WEATHER = ToolSpec("weather", "", {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
TODAY = ToolSpec("today", "", {"type": "object", "properties": {}})
ULM = '{"city":"Ulm"}'


def read(*events: Any, reason: str | None = "tool_call", **options: Any) -> list[Chunk]:
    reader = AnswerReader([WEATHER, TODAY], **options)
    chunks = [chunk for event in events for chunk in reader.read(event)]
    return [*chunks, *(reader.finish(reason) if reason else ())]


def start(index: int, part: Any) -> lib.PartStartEvent:
    return lib.PartStartEvent(index=index, part=part)


def more(index: int, delta: Any) -> lib.PartDeltaEvent:
    return lib.PartDeltaEvent(index=index, delta=delta)


def end(index: int, part: Any) -> lib.PartEndEvent:
    return lib.PartEndEvent(index=index, part=part)


def call(index: int, args: Any = None, call_id: str = "c1", name: str = "weather") -> lib.PartStartEvent:
    return start(index, lib.ToolCallPart(name, args, call_id))


def args(index: int, text: Any) -> lib.PartDeltaEvent:
    return more(index, lib.ToolCallPartDelta(args_delta=text))


def kinds(chunks: Iterable[Chunk]) -> list[str]:
    return [chunk["type"] for chunk in chunks]


def ends(chunks: Iterable[Chunk]) -> list[Chunk]:
    return [chunk for chunk in chunks if chunk["type"] in ("tool-input-available", "tool-input-error")]


# ---------------------------------------------------------------- words


def test_a_piece_of_what_never_began_says_nothing() -> None:
    assert read(more(7, lib.TextPartDelta("lost")), args(8, "{"), reason=None) == []


def test_a_text_grows_and_ends() -> None:
    text = lib.TextPart("Hi ")
    chunks = read(
        start(0, text), more(0, lib.TextPartDelta(content_delta="you")), end(0, lib.TextPart("Hi you")), reason="stop"
    )
    assert chunks == [
        {"type": "text-start", "id": "text-0"},
        {"type": "text-delta", "id": "text-0", "delta": "Hi "},
        {"type": "text-delta", "id": "text-0", "delta": "you"},
        {"type": "text-end", "id": "text-0"},
    ]


def test_a_thought_ends_with_the_signature_that_its_provider_wants_back() -> None:
    thought = lib.ThinkingPart("hm", signature="SIG", id="t", provider_name="anthropic", provider_details={"a": (1, 2)})
    chunks = read(start(0, lib.ThinkingPart("")), more(0, lib.ThinkingPartDelta(content_delta="hm")), end(0, thought))
    told = {"provider": "anthropic", "id": "t", "signature": "SIG", "details": {"a": [1, 2]}}
    assert chunks[-1] == {"type": "reasoning-end", "id": "reasoning-0", "providerMetadata": {"perdure": told}}


def test_a_thought_without_words_is_kept_for_its_signature_alone() -> None:
    thought = lib.ThinkingPart("", signature="SIG", provider_name="anthropic")
    assert kinds(read(start(0, thought), end(0, thought))) == ["reasoning-start", "reasoning-end"]
    assert read(start(0, lib.ThinkingPart("")), end(0, lib.ThinkingPart(""))) == []


@pytest.mark.shows(chat_recovery="C-1292")
def test_a_thought_that_breaks_off_gets_no_signature() -> None:
    thought = lib.ThinkingPart("hm", signature="SIG", provider_name="anthropic")
    assert kinds(read(start(0, thought), reason=None)) == ["reasoning-start", "reasoning-delta"]


def test_a_character_that_was_cut_in_two_is_joined_and_a_nul_is_replaced() -> None:
    chunks = read(start(0, lib.TextPart("a\ud83d")), more(0, lib.TextPartDelta(content_delta="\ude00\x00")))
    assert [chunk["delta"] for chunk in chunks if "delta" in chunk] == ["a", "😀�"]


def test_pages_that_an_answer_cites_are_sources_each_once() -> None:
    page = lib.WebCitationSource("https://a.example", title="A")
    cited = [lib.Citation([page]), lib.Citation([page, lib.DocumentCitationSource(title="B")])]
    chunks = read(start(0, lib.TextPart("x")), end(0, lib.TextPart("x", citations=cited)), reason="stop")
    assert [chunk for chunk in chunks if chunk["type"] == "source-url"] == [
        {"type": "source-url", "sourceId": "source-1", "url": "https://a.example", "title": "A"}
    ]


def test_a_file_of_the_model_becomes_one() -> None:
    picture = lib.FilePart(lib.BinaryContent(b"\x00", media_type="image/png"))
    assert read(start(0, picture)) == [{"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA=="}]


def test_what_the_provider_executes_itself_is_marked_so() -> None:
    search = lib.NativeToolCallPart("web_search", {"q": "x"}, "n1", provider_name="openai", id="ws_1")
    found = lib.NativeToolReturnPart("web_search", {"hits": 1}, "n1", provider_name="openai")
    reader = AnswerReader([])
    chunks = [
        c for event in (start(0, search), args(0, "{}"), end(0, search), start(1, found)) for c in reader.read(event)
    ]
    assert kinds(chunks) == ["tool-input-available", "tool-output-available"]
    assert all(chunk["providerExecuted"] for chunk in chunks)
    assert (reader.has_calls, len(reader.calls)) == (True, 0)


@pytest.mark.parametrize(
    "event",
    [
        start(0, lib.TextPart("x" * 1001)),
        start(0, lib.ToolCallPart("weather", {"city": "x" * 1001}, "c")),
        start(0, lib.FilePart(lib.BinaryContent(b"x" * 1001, media_type="a/b"))),
        start(0, lib.ThinkingPart("", signature="x" * 1001)),
    ],
)
def test_an_answer_that_is_too_long_is_a_failure_that_says_so(event: Any) -> None:
    with pytest.raises(ModelFailed, match="more than 1000 bytes") as failed:
        read(event, bytes_max=1000)
    assert not failed.value.failure.is_transient


def test_ever_more_pieces_of_nothing_are_too_long_as_well() -> None:
    reader = AnswerReader([], bytes_max=1000)
    with pytest.raises(ModelFailed):
        [list(reader.read(args(0, ""))) for _ in range(100)]


# ---------------------------------------------------------------- calls


def test_a_call_is_given_out_when_the_next_part_begins() -> None:
    chunks = read(call(0), args(0, '{"city":'), args(0, '"Ulm"}'), start(1, lib.TextPart("and")), reason=None)
    assert kinds(chunks) == [
        "tool-input-start",
        *["tool-input-delta"] * 2,
        "tool-input-available",
        "text-start",
        "text-delta",
    ]
    assert chunks[3] == {
        "type": "tool-input-available",
        "toolCallId": "c1",
        "toolName": "weather",
        "input": {"city": "Ulm"},
    }


@pytest.mark.parametrize("reason", ["stop", "tool_call"])
def test_a_call_is_given_out_when_the_answer_ends(reason: str) -> None:
    assert ends(read(call(0, ULM), reason=None)) == []
    assert kinds(ends(read(call(0, ULM), reason=reason))) == ["tool-input-available"]


@pytest.mark.parametrize("reason", ["length", "content_filter", "error"])
def test_the_last_call_of_an_answer_that_was_cut_off_is_not_given_out(reason: str) -> None:
    first, last = ends(read(call(0, ULM), call(1, ULM, "c2"), reason=reason))
    assert (first["type"], last["type"]) == ("tool-input-available", "tool-input-error")
    assert f"cut off ({reason})" in last["errorText"]


def test_calls_that_all_begin_before_they_are_filled_wait_for_the_end() -> None:
    chunks = read(call(0), call(1, call_id="c2"), args(0, ULM), args(1, ULM), reason=None)
    assert ends(chunks) == []
    assert kinds(ends(read(call(0), call(1, call_id="c2"), args(0, ULM), args(1, ULM)))) == ["tool-input-available"] * 2


def test_arguments_that_come_whole_are_taken_as_they_are() -> None:
    (given,) = ends(read(call(0, {"city": "Ulm"})))
    assert given["input"] == {"city": "Ulm"}
    (given,) = ends(read(call(0), args(0, {"city": "Ulm"})))
    assert given["input"] == {"city": "Ulm"}


def test_a_tool_that_needs_nothing_may_be_called_with_nothing() -> None:
    (today,) = ends(read(call(0, "", name="today")))
    assert (today["type"], today["input"]) == ("tool-input-available", {})
    (weather,) = ends(read(call(0, "", name="weather")))
    assert "none came, and these are required: city" in weather["errorText"]


@pytest.mark.shows(transport_recovery="A8")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"city":"U', "they are not JSON"),
        ('{"city":"Ulm"}{"city":"Bonn"}', "something follows the first JSON value, at character 14"),
        ('{}{"city":"Ulm"}', "something follows"),
        ('["Ulm"]', "they are a JSON array, not an object"),
        ("null", "they are a JSON null"),
        ('{"city":NaN}', "NaN is not JSON"),
        ('{"city":1,"city":2}', "the name 'city' stands twice"),
        ('{"city":' + "[" * 100_000, "nested too deep"),
        ('{"city":' + "9" * 5000 + "}", "4300"),
        ('{"city":' + "9" * 50 + "}", "an integer may have 64"),
    ],
)
def test_arguments_that_are_not_one_strict_object_are_an_error_for_the_model(text: str, why: str) -> None:
    (error,) = ends(read(call(0, text)))
    assert error["type"] == "tool-input-error"
    assert error["errorText"].startswith("This call was not executed: the arguments cannot be used: ")
    assert why in error["errorText"]
    assert len(error["errorText"]) < 1000


def test_a_tool_that_was_not_offered_is_an_error_that_names_those_that_were() -> None:
    (error,) = ends(read(call(0, ULM, name="wetter")))
    assert error["errorText"] == "This call was not executed: there is no tool 'wetter'; the tools are: weather, today."


def test_a_name_that_no_provider_would_take_back_is_rewritten() -> None:
    names = [
        each["toolName"]
        for each in ends(read(call(0, "{}", name="get weather!"), call(1, "{}", name="", call_id="c2")))
    ]
    assert names == ["get_weather_", "unnamed"]


def test_a_name_may_come_in_pieces() -> None:
    event = more(0, lib.ToolCallPartDelta(tool_name_delta="ther", args_delta=ULM))
    (given,) = ends(read(call(0, name="wea"), event))
    assert (given["type"], given["toolName"]) == ("tool-input-available", "weather")


@pytest.mark.shows(transport_recovery="A7")
def test_ids_are_unique_whatever_the_provider_says() -> None:
    odd = ["c1", "c1", "", "pyd_ai_1", "a b", "x" * 65, "\ud800", "taken", "ok:1"]
    events = [call(at, ULM, call_id) for at, call_id in enumerate(odd)]
    ids = [each["toolCallId"] for each in ends(read(*events, taken_ids=["taken"]))]
    assert len(set(ids)) == len(odd)
    assert (ids[0], ids[-1]) == ("c1", "ok:1")
    assert not {*ids[1:-1]} & {*odd}
    assert all(each.startswith("call_") for each in ids[1:-1])
    assert ids == [each["toolCallId"] for each in ends(read(*events, taken_ids=["taken"]))]


def test_a_provider_that_says_anew_how_a_call_begins_is_believed() -> None:
    (given,) = ends(read(call(0, '{"ci'), call(0, ULM)))
    assert given["input"] == {"city": "Ulm"}


@pytest.mark.parametrize("late", [args(0, "{}"), call(0, "{}"), more(0, lib.ToolCallPartDelta(tool_name_delta="x"))])
def test_a_call_that_goes_on_after_it_was_given_out_is_noticed(late: Any) -> None:
    reader = AnswerReader([WEATHER])
    for event in (call(0, ULM), call(1, None, "c2")):
        list(reader.read(event))
    with pytest.raises(ModelFailed, match="added to a finished call of weather") as failed:
        list(reader.read(late))
    assert failed.value.failure.is_transient


def test_blanks_after_a_call_that_was_given_out_are_nothing() -> None:
    reader = AnswerReader([WEATHER])
    for event in (call(0, ULM), call(1, None, "c2")):
        list(reader.read(event))
    assert list(reader.read(args(0, " \n"))) == []


def test_what_the_provider_wants_back_with_a_call_goes_with_it_but_not_with_a_broken_one() -> None:
    part = lib.ToolCallPart("weather", ULM, "c1", id="fc_1", provider_name="openai")
    (given,) = ends(read(start(0, part), end(0, part)))
    assert given["providerMetadata"] == {"perdure": {"provider": "openai", "id": "fc_1"}}
    (late,) = ends(read(start(0, lib.ToolCallPart("weather", ULM, "c1")), end(0, part)))
    assert late["providerMetadata"] == given["providerMetadata"], "it may come with the end of the call only"
    (broken,) = ends(read(start(0, part), end(0, part), reason="length"))
    assert "providerMetadata" not in broken


def test_whose_id_it_is_is_said_where_others_would_not_take_it() -> None:
    reader = AnswerReader([WEATHER])
    reader.provider = "moonshotai"
    chunks = [
        *reader.read(call(0, ULM, "functions.weather:0")),
        *reader.read(call(1, ULM, "c2")),
        *reader.finish("stop"),
    ]
    odd, usual = ends(chunks)
    assert odd["providerMetadata"] == {"perdure": {"provider": "moonshotai"}}
    assert "providerMetadata" not in usual


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(codec="ascii", min_codepoint=1)), inner, max_size=3)
    ),
    max_leaves=6,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "city"]), VALUES, max_size=3)


@pytest.mark.shows(transport_recovery="A8 B11")
@given(OBJECTS, st.data())
def test_no_beginning_of_an_object_is_taken_for_one(value: dict[str, Any], data: st.DataObject) -> None:
    text = json.dumps(value, ensure_ascii=data.draw(st.booleans()))
    assert arguments_in(text) == value
    with pytest.raises(BadArguments):
        arguments_in(text[: data.draw(st.integers(0, len(text) - 1))])


PIECES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(["{", "}", '"city"', ":", '"Ulm"', ULM, "", " ", "{}"])), max_size=12
)


@pytest.mark.shows(transport_recovery="B11")
@given(PIECES, st.sampled_from(["stop", "tool_call", "length", "content_filter", "error", None]))
def test_however_calls_are_streamed_each_ends_once_and_only_whole_ones_are_given_out(
    pieces: list[tuple[int, str]], reason: str | None
) -> None:
    reader, texts, chunks = CallReader([WEATHER, TODAY]), dict[int, str](), list[Chunk]()
    for number, text in pieces:
        if number not in texts:
            chunks += [*reader.next_began(number), *reader.started(number, f"c{number}", "weather", text)]
        else:
            try:
                chunks += reader.grew(number, "", text)
            except ModelFailed:  # the call was given out
                break
        texts[number] = texts.get(number, "") + text
    chunks += reader.ended(reason) if reason else ()
    over = ends(chunks)
    assert len({each["toolCallId"] for each in over}) == len(over)
    assert reason is None or len(over) == len(texts)
    for each in over:
        if each["type"] == "tool-input-available":
            assert arguments_in(texts[int(each["toolCallId"][1:])]) == each["input"]
    parts = {part["toolCallId"]: part for part in reduce(apply_chunk, chunks, list[Any]())}
    for each in over:
        state = "input-available" if each["type"] == "tool-input-available" else "output-error"
        assert (parts[each["toolCallId"]]["state"], parts[each["toolCallId"]]["input"]) == (state, each["input"])
