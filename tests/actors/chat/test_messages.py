from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.actors.chat.chat_messages import (
    FILES_BYTES_MAX,
    INPUT_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    RESULT_BYTES_MAX,
    as_messages,
    for_storage,
    shortened_result,
)
from perdure.actors.chat.plain_data import TextJoiner, all_mended
from perdure.ledger import BadRequest, TooLarge, pack
from perdure.policies import STEERED, Message, steered_message, steered_part


def counting() -> Callable[[], str]:
    numbers = itertools.count(1)
    return lambda: f"m{next(numbers)}"


def read(given: object, **options: Any) -> list[Message]:
    return as_messages(given, new_id=counting(), **options)


def user(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"id": "u1", "role": "user", "parts": list(parts), **more}


def assistant(*parts: dict[str, Any], **more: Any) -> Message:
    return {"id": "a1", "role": "assistant", "parts": list(parts), **more}  # type: ignore[typeddict-item]


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


FILE = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64," + "A" * 100_000}

# ---------------------------------------------------------------- what a client sends


def test_a_text_is_one_message_of_the_user() -> None:
    assert read("Hello") == [{"id": "m1", "role": "user", "parts": [text("Hello")]}]


@pytest.mark.shows(chat_recovery="C-0699")
def test_a_message_and_a_list_of_texts_and_messages_are_taken_as_they_are() -> None:
    message = user(text("Hello"), {"type": "data-map", "data": {"x": [1, 2.5, None, True]}}, metadata={"theme": "dark"})
    assert read(message) == [message]
    assert [each["id"] for each in read([message, "and more"])] == ["u1", "m1"]
    assert read([]) == []


def test_the_result_shares_nothing_with_what_was_given() -> None:
    message = user({"type": "data-map", "data": {"x": [1]}})
    (kept,) = read(message)
    message["parts"][0]["data"]["x"].append(2)
    assert kept["parts"][0]["data"] == {"x": [1]}


@pytest.mark.shows(chat_recovery="C-0775")
def test_metadata_that_only_the_agent_writes_is_left_out() -> None:
    (kept,) = read(user(text("Hi"), metadata={"channel": "admin", "turnMetadata": {}, "theme": "dark"}))
    assert kept["metadata"] == {"theme": "dark"}
    (kept,) = read(user(text("Hi"), metadata={"channel": "admin"}))
    assert "metadata" not in kept


def test_a_tool_part_says_its_tool() -> None:
    part = {"type": "tool-search", "toolCallId": "c1", "state": "output-available", "input": {}, "output": 1}
    (kept,) = read(assistant(part))
    assert kept["parts"][0]["toolName"] == "search"


class Colour(enum.StrEnum):
    RED = "red"


class Shade(str, enum.Enum):  # noqa: UP042 - the old way, whose str() is its name
    DARK = "dark"


def test_members_of_enums_become_their_values() -> None:
    (kept,) = read(user({"type": "data-x", "data": [Colour.RED, Shade.DARK]}))
    assert kept["parts"][0]["data"] == ["red", "dark"]
    assert {type(each) for each in kept["parts"][0]["data"]} == {str}


deep: list[Any] = []
deep.append(deep)
TOOL = {"type": "tool-x", "toolCallId": "c", "state": "input-available"}

BAD: list[tuple[object, str, str]] = [
    (None, "messages", "is NoneType, neither a text nor a message"),
    (" \n", "messages", "is blank"),
    (["hello", "\u2003"], "messages[1]", "is blank"),
    (user(text("")), "messages.parts", "is blank"),
    ([user(text(" \n")), "x"], "messages[0].parts", "is blank"),
    (user({"type": "step-start"}, text("\t"), text("")), "messages.parts", "is blank"),
    ({**user(text("")), "role": "system"}, "messages.parts", "is blank"),
    ([user(text("x")), 3], "messages[1]", "is int"),
    ({"parts": [text("x")]}, "messages.role", "None is not one of user, assistant, system"),
    ({**user(text("x")), "role": "tool"}, "messages.role", "'tool' is not one of"),
    ({**user(text("x")), "id": 3}, "messages.id", "3 is not a string"),
    ({**user(text("x")), "id": " "}, "messages.id", "is blank"),
    ({**user(text("x")), "id": "a\ud800"}, "messages.id", "half of a surrogate pair"),
    ([user(text("x")), user(text("y"))], "messages", "the id 'u1' is there twice"),
    ({"role": "user", "content": "x"}, "messages.parts", "is not a list of parts"),
    (user(), "messages.parts", "is blank"),
    (user("x"), "messages.parts[0]", "is str, not a part"),  # type: ignore[arg-type]
    (user({"text": "x"}), "messages.parts[0].type", "not a string"),
    (user({"type": "video"}), "messages.parts[0].type", "'video' is not a type of part"),
    (user(text("a\x00b")), "messages.parts[0].text", "contains a NUL character at position 1"),
    (user({"type": "text"}), "messages.parts[0].text", "is NoneType, not a string"),
    (user({"type": "file", "url": "x"}), "messages.parts[0].mediaType", "not a string"),
    (user({"type": "data-x"}), "messages.parts[0].data", "is missing"),
    (user({"type": "data-x", "data": {"a": [1, {2}]}}), "messages.parts[0].data.a[1]", "is set"),
    (user({"type": "data-x", "data": b"x"}), "messages.parts[0].data", "is bytes, which is not plain data"),
    (user({"type": "data-x", "data": float("nan")}), "messages.parts[0].data", "is nan"),
    (user({"type": "data-x", "data": 2**64}), "messages.parts[0].data", "has 65 bits"),
    (user({"type": "data-x", "data": {1: 2}}), "messages.parts[0].data", "has the key 1"),
    (user({"type": "data-x", "data": deep}), "messages.parts[0].data" + "[0]" * 63, "is nested deeper"),
    (assistant({"type": STEERED, "data": "x"}), "messages.parts[0].data", "is str, not an object"),
    (assistant({"type": STEERED, "data": {"text": "x"}}), "messages.parts[0].data.messageId", "not a string"),
    (assistant({"type": STEERED, "data": {"messageId": "x"}}), "messages.parts[0].data.text", "not a string"),
    (
        assistant({"type": STEERED, "data": {"messageId": "x", "text": "", "parts": [{"type": "text"}]}}),
        "messages.parts[0].data.parts[0].text",
        "not a string",
    ),
    (assistant({**TOOL, "toolCallId": ""}), "messages.parts[0].toolCallId", "is blank"),
    (assistant({**TOOL, "state": "done"}), "messages.parts[0].state", "'done' is not one of"),
    (assistant({**TOOL, "type": "dynamic-tool"}), "messages.parts[0].toolName", "is blank"),
    (assistant({**TOOL, "state": "output-available"}), "messages.parts[0].output", "is missing"),
    (assistant({**TOOL, "state": "output-error"}), "messages.parts[0].errorText", "not a string"),
    (assistant({**TOOL, "approval": 1}), "messages.parts[0].approval", "is not an object"),
    (assistant(TOOL, TOOL), "messages", "the toolCallId 'c' is there twice"),
    (user(text("x"), metadata=[1]), "messages.metadata", "is list, not an object"),
    (user(text("x"), metadata={"a": "x" * 70_000}), "messages.metadata", "the limit is"),
    (user(text("x" * (INPUT_BYTES_MAX + 1))), "messages", "the limit is"),
    (user({"type": "file", "mediaType": "a/b", "url": "x" * (FILES_BYTES_MAX + 1)}), "messages.parts", "give links"),
    (user(*[text("x")] * 4097), "messages.parts", "the limit is 4096"),
]


@pytest.mark.shows(chat_recovery="C-1219")
@pytest.mark.parametrize(("given", "field", "problem"), BAD, ids=[f"{at} {row[2]}" for at, row in enumerate(BAD)])
def test_what_is_wrong_is_refused_by_the_name_of_its_field(given: object, field: str, problem: str) -> None:
    with pytest.raises(BadRequest) as refused:
        read(given)
    assert (refused.value.field, problem in refused.value.problem) == (field, True), str(refused.value)


def test_metadata_of_a_client_has_64_kib_at_most() -> None:
    fits = {"a": "x" * (64 * 1024 - len(pack({"a": "x" * 65_000})) + 65_000)}
    assert read(user(text("Hello"), metadata=fits))[0]["metadata"] == fits
    with pytest.raises(TooLarge, match="metadata: has 65537 bytes encoded; the limit is 65536"):
        read(user(text("Hello"), metadata={"a": fits["a"] + "x"}))


def test_a_caller_may_allow_fewer_roles() -> None:
    with pytest.raises(BadRequest, match="'system' is not one of user"):
        read({"role": "system", "parts": [text("x")]}, roles=("user",))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN | st.dictionaries(st.sampled_from(["id", "role", "parts", "metadata", "type", "text", "state"]), PLAIN))
def test_whatever_is_given_is_taken_or_refused_with_a_field(given: object) -> None:
    field = "messages"
    try:
        pack(read(given))
    except BadRequest as problem:
        field = problem.field
    assert field.startswith("messages")


# ---------------------------------------------------------------- the row


def returned(value: object) -> dict[str, Any]:
    return {**TOOL, "toolName": "x", "state": "output-available", "input": {}, "output": value}


def test_a_message_that_fits_is_the_very_same() -> None:
    message = assistant(text("x" * 1_000_000))
    assert for_storage(message) is message


def test_reasoning_that_says_nothing_is_not_kept_but_a_signature_is() -> None:
    signed = {"type": "reasoning", "text": "", "providerMetadata": {"signature": "s"}}
    assert for_storage(assistant({"type": "reasoning", "text": ""}, signed, text("x")))["parts"] == [signed, text("x")]


def test_what_tools_returned_is_shortened_first_with_a_note_in_its_place() -> None:
    message = assistant(text("x" * 900_000), returned("y" * 3_000_000), returned(["z" * 100]))
    spoken, long, short = for_storage(message)["parts"]
    assert (spoken, short) == (text("x" * 900_000), returned(["z" * 100]))
    assert long["output"].startswith("yyyy")
    assert long["output"].endswith("yyyy")
    assert "characters were left out: the message was longer than one may be" in long["output"]


def test_of_a_text_that_is_too_long_two_thirds_are_its_beginning_and_one_its_end() -> None:
    keep = RESULT_BYTES_MAX
    assert shortened_result("a" * keep) == "a" * keep
    for first, last in (("a", "b"), ("ü", "ö")):
        fits = keep // len(first.encode())
        head, note, tail = shortened_result(first * fits + last * fits).split("\n")
        assert (set(head), set(tail)) == ({first}, {last}), "no character is cut in two"
        assert keep * 2 // 3 - 1 <= len(head.encode()) <= keep * 2 // 3
        assert keep // 3 - 1 <= len(tail.encode()) <= keep // 3
        assert note.startswith(f"[… {2 * fits - len(head) - len(tail):,} characters were left out")
    assert str(shortened_result(["a" * keep])).startswith('["aaa')
    assert shortened_result(small := ["a" * (keep - 10)]) is small


def test_what_people_wrote_is_shortened_when_nothing_else_helps() -> None:
    (part,) = for_storage(assistant(text("begin" + "é" * 2_000_000 + "end")))["parts"]
    assert part["text"].startswith("begin")
    assert part["text"].endswith("end")
    assert "were left out" in part["text"]


def test_a_shortened_input_is_still_an_object_and_cut_reasoning_has_no_signature() -> None:
    call = {**TOOL, "toolName": "x", "input": {"code": "c" * 2_000_000}}
    reasoning = {"type": "reasoning", "text": "r" * 2_000_000, "providerMetadata": {"signature": "s"}}
    kept_call, kept_reasoning = for_storage(assistant(call, reasoning))["parts"]
    assert "were left out" in kept_call["input"]["leftOut"]
    assert "providerMetadata" not in kept_reasoning


@pytest.mark.parametrize("parts", [[text("w" * 900_000)], [text("w" * 600_000), FILE]], ids=["text", "with a file"])
def test_what_a_person_said_in_an_answer_is_shortened_last_and_stays_a_message(parts: list[Any]) -> None:
    message: Message = {"id": "m1", "role": "user", "parts": parts}
    large = {
        "type": "dynamic-tool",
        "toolCallId": "c",
        "toolName": "t",
        "state": "output-available",
        "output": "o" * 10**6,
    }
    kept = for_storage(assistant(steered_part("s1", "p1", message), large))  # type: ignore[arg-type]
    assert kept["parts"][0] == steered_part("s1", "p1", message), "what a tool returned gives way first"
    short = for_storage(assistant(steered_part("s1", "p1", message)), 300_000)["parts"][0]  # type: ignore[arg-type]
    said = steered_message(short)
    assert said is not None
    assert (said["id"], short["id"], short["data"]["id"]) == ("m1", "p1", "s1")
    assert "characters were left out" in said["parts"][0]["text"]
    assert len(said["parts"]) == len(parts)


def test_a_file_that_does_not_fit_leaves_a_note() -> None:
    file = {"type": "file", "mediaType": "image/png", "filename": "cat.png", "url": "data:" + "x" * 2_000_000}
    assert for_storage(assistant(file))["parts"] == [
        {
            "type": "text",
            "text": "[The file cat.png was left out: the message was longer than one may be]",
            "state": "done",
        }
    ]


@pytest.mark.parametrize(
    "part_of",
    [
        lambda fill: returned("x" * fill),
        lambda fill: returned(["x" * (fill - 6)]),
        lambda fill: {"type": "data-x", "data": ["x" * (fill - 6)]},
        lambda fill: {"type": "reasoning", "text": "x" * fill, "providerMetadata": {"signature": "s"}},
        lambda fill: {**TOOL, "toolName": "x", "input": {"a": "x" * (fill - 8)}},
        lambda fill: text("x" * fill),
        lambda fill: {"type": "file", "mediaType": "a/b", "url": "x" * fill},
    ],
    ids=["text of a tool", "data of a tool", "data", "reasoning", "input", "text", "file"],
)
def test_a_part_is_left_alone_up_to_the_length_to_which_others_are_cut(
    part_of: Callable[[int], dict[str, Any]],
) -> None:
    cut, fits = 2_000_000, 256 * 1024
    assert for_storage(assistant(part_of(cut), part_of(fits)))["parts"][1] == part_of(fits)
    assert for_storage(assistant(part_of(cut), part_of(fits + 1)))["parts"][1] != part_of(fits + 1)


def test_of_too_many_parts_the_first_and_the_last_are_kept() -> None:
    parts = for_storage(assistant(*[text(f"{at} " + "x" * 500) for at in range(10_000)]))["parts"]
    assert parts[0]["text"].startswith("0 ")
    assert parts[-1]["text"].startswith("9999 ")
    assert any("parts were left out" in part["text"] for part in parts)


def test_metadata_over_the_limit_is_refused() -> None:
    with pytest.raises(TooLarge, match="metadata"):
        for_storage(assistant(text("x"), metadata={"a": "x" * MESSAGE_BYTES_MAX}))


LONG = st.integers(0, 6000)
PARTS = st.one_of(
    LONG.map(lambda n: text("é" * n)),
    LONG.map(lambda n: {"type": "reasoning", "text": "r" * n, "providerMetadata": {"s": "x" * (n // 2)}}),
    LONG.map(lambda n: returned("y" * n)),
    LONG.map(lambda n: returned({"rows": ["y" * 10] * (n // 10)})),
    LONG.map(lambda n: {**TOOL, "toolName": "x", "input": {"a": "z" * n}}),
    LONG.map(lambda n: {**TOOL, "toolName": "x", "state": "output-error", "errorText": "e" * n}),
    LONG.map(lambda n: {"type": "data-x", "data": ["d" * n]}),
    LONG.map(lambda n: {"type": "file", "mediaType": "a/b", "url": "f" * n}),
    st.just({"type": "step-start"}),
)


@given(st.lists(PARTS, max_size=12), st.integers(2000, 20_000))
def test_whatever_a_message_holds_it_fits_afterwards_and_stays(parts: list[dict[str, Any]], bytes_max: int) -> None:
    kept = for_storage(assistant(*parts), bytes_max)
    assert len(pack(kept)) <= bytes_max
    assert for_storage(kept, bytes_max) is kept


# ---------------------------------------------------------------- mending


@given(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\x00")), st.data())
def test_a_text_in_pieces_is_joined_wherever_it_was_cut(whole: str, data: st.DataObject) -> None:
    units = whole.encode("utf-16-le")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(units) // 2), max_size=4)))
    bounds = [0, *(2 * cut for cut in cuts), len(units)]
    pieces = [units[a:b].decode("utf-16-le", "surrogatepass") for a, b in itertools.pairwise(bounds)]
    joiner = TextJoiner()
    assert "".join(map(joiner.joined, pieces)) + joiner.rest() == whole


def test_half_a_character_and_a_nul_are_replaced() -> None:
    joiner = TextJoiner()
    assert [joiner.joined("a\ud83d"), joiner.joined("b\udc00\x00"), joiner.joined("\ud83d"), joiner.rest()] == [
        "a", "�b��", "", "�",
    ]  # fmt: skip
    assert all_mended({"a\x00": ["\ud800", 1]}) == {"a�": ["�", 1]}
    numbers = [math.nan, math.inf, -math.inf, 0.5]
    assert all_mended({"a": numbers}) == {"a": ["NaN", "Infinity", "-Infinity", 0.5]}
