"""The parts of a message grow from stream chunks, and only ever into new lists."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.actors.events.message_parts import apply_chunk, call_cell, chunk_of, chunks_of, events_of
from perdure.policies import Part, ToolState
from perdure.policies.ui_messages import TOOL_SETTLED


def grown(*chunks: dict[str, Any], parts: list[Part] | None = None) -> list[Part]:
    parts = parts or []
    for chunk in chunks:
        parts = apply_chunk(parts, chunk)
    return parts


def text(delta: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text-delta", "delta": delta, **fields}


def call(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, "toolCallId": "call-1", "toolName": "search", **fields}


# --- text and reasoning


@pytest.mark.shows(chat_recovery="C-0347 C-0348 C-0350 C-0386")
def test_a_text_streams_and_is_done() -> None:
    started = grown({"type": "text-start", "id": "t"}, text("Hel", id="t"), text("lo", id="t"))
    assert started == [{"type": "text", "id": "t", "text": "Hello", "state": "streaming"}]
    assert grown({"type": "text-end", "id": "t"}, parts=started) == [{"type": "text", "text": "Hello", "state": "done"}]


@pytest.mark.shows(chat_recovery="C-0349")
def test_a_lone_delta_makes_a_text_part_and_the_next_one_continues_it() -> None:
    assert grown(text("hello"), text(" world")) == [{"type": "text", "text": "hello world", "state": "streaming"}]


@pytest.mark.shows(chat_recovery="C-0399 W-31")
def test_interleaved_texts_find_their_parts_by_id() -> None:
    parts = grown(
        {"type": "text-start", "id": "a"},
        {"type": "text-start", "id": "b"},
        text("1", id="a"),
        text("2", id="b"),
        text("3", id="a"),
        {"type": "text-end", "id": "a"},
        text("4", id="b"),
    )
    assert [(part["text"], part["state"]) for part in parts] == [("13", "done"), ("24", "streaming")]


def test_text_without_an_id_that_follows_a_tool_call_is_not_put_before_it() -> None:
    parts = grown(text("before"), call("tool-input-available", input={}), text("after"))
    assert [part.get("text") for part in parts] == ["before", None, "after"]


@pytest.mark.shows(chat_recovery="C-0361 C-0362")
def test_a_finished_step_closes_its_texts_so_that_the_next_step_may_use_their_ids() -> None:
    parts = grown(
        {"type": "start-step"},
        text("one", id="0"),
        {"type": "finish-step"},
        {"type": "start-step"},
        text("two", id="0"),
    )
    assert [part["type"] for part in parts] == ["step-start", "text", "step-start", "text"]
    assert [part["text"] for part in parts if part["type"] == "text"] == ["one", "two"]
    assert [part["state"] for part in parts if part["type"] == "text"] == ["done", "streaming"]


@pytest.mark.shows(chat_recovery="C-0351 C-0353 C-0354 C-0355")
def test_reasoning_keeps_the_signature_that_comes_with_its_end() -> None:
    parts = grown(
        {"type": "reasoning-start", "id": "r", "providerMetadata": {"a": 1}},
        {"type": "reasoning-delta", "id": "r", "delta": "hm", "providerMetadata": {"b": 2}},
        {"type": "reasoning-end", "id": "r", "providerMetadata": {"signature": "s"}},
    )
    metadata = {"a": 1, "b": 2, "signature": "s"}
    assert parts == [{"type": "reasoning", "text": "hm", "state": "done", "providerMetadata": metadata}]


@pytest.mark.shows(chat_recovery="C-0352 C-0356 C-0357")
def test_a_lone_reasoning_delta_makes_a_part_with_the_metadata_that_it_has() -> None:
    bare = {"type": "reasoning-delta", "delta": "hm"}
    assert grown(bare) == [{"type": "reasoning", "text": "hm", "state": "streaming"}]
    assert grown({**bare, "providerMetadata": {"a": 1}})[0]["providerMetadata"] == {"a": 1}


# --- sources, files, data


@pytest.mark.shows(chat_recovery="C-0358 C-0359 C-0360")
def test_sources_and_files_are_parts_as_they_come() -> None:
    chunks = [
        {"type": "source-url", "sourceId": "s1", "url": "https://example.org", "title": "Example"},
        {
            "type": "source-document",
            "sourceId": "s2",
            "mediaType": "application/pdf",
            "title": "Paper",
            "filename": "p.pdf",
        },
        {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA=="},
    ]
    assert grown(*chunks) == chunks


@pytest.mark.shows(chat_recovery="C-0363 C-0364 C-0405")
def test_a_data_part_with_an_id_is_renewed_in_place() -> None:
    parts = grown(
        {"type": "data-weather", "id": "w", "data": 1},
        text("…"),
        {"type": "data-weather", "id": "w", "data": 2},
        {"type": "data-weather", "data": 3},
        {"type": "data-weather", "data": 4},
    )
    assert [part.get("data") for part in parts] == [2, None, 3, 4]


@pytest.mark.shows(chat_recovery="C-0365")
def test_a_transient_data_part_is_not_kept() -> None:
    parts = grown(text("a"))
    assert apply_chunk(parts, {"type": "data-agent-progress", "transient": True, "data": {"fraction": 0.5}}) is parts


# --- tool calls


@pytest.mark.shows(chat_recovery="C-0366 C-0367 C-0368 C-0371")
def test_a_tool_call_goes_from_streamed_input_to_output() -> None:
    parts = grown(call("tool-input-start"), call("tool-input-delta", inputTextDelta='{"query": "du'))
    assert parts[0]["state"] == "input-streaming"
    assert parts[0]["input"] == {"query": "du"}
    parts = grown(call("tool-input-delta", inputTextDelta='ck", "n":'), parts=parts)
    assert parts[0]["input"] == {"query": "duck"}
    parts = grown(call("tool-input-available", input={"query": "duck", "n": 3}), parts=parts)
    assert parts[0]["state"] == "input-available"
    assert "inputText" not in parts[0]
    parts = grown({"type": "tool-output-available", "toolCallId": "call-1", "output": [1, 2]}, parts=parts)
    assert parts == [
        {
            "type": "tool-search",
            "toolCallId": "call-1",
            "toolName": "search",
            "state": "output-available",
            "input": {"query": "duck", "n": 3},
            "output": [1, 2],
        }
    ]


@pytest.mark.shows(chat_recovery="C-0369")
def test_a_dynamic_tool_keeps_its_name_in_a_field() -> None:
    assert grown(call("tool-input-available", dynamic=True, input={}))[0]["type"] == "dynamic-tool"


@pytest.mark.shows(chat_recovery="C-1221", transport_recovery="8")
@pytest.mark.parametrize(
    "replayed",
    [
        call("tool-input-start"),
        call("tool-input-delta", inputTextDelta="x"),
        call("tool-input-available", input={"other": 1}),
        call("tool-input-error", input={}, errorText="no"),
        call("tool-approval-request", approvalId="again"),
        call("tool-output-denied"),
    ],
)
def test_a_provider_that_replays_an_earlier_call_moves_nothing_backwards(replayed: dict[str, Any]) -> None:
    parts = grown(call("tool-input-available", input={"a": 1}), call("tool-output-available", output="done"))
    assert apply_chunk(parts, replayed) is parts


@pytest.mark.shows(chat_recovery="C-0404")
def test_a_preliminary_output_gives_way_to_the_final_one() -> None:
    half = grown(call("tool-input-available", input={}), call("tool-output-available", output="half", preliminary=True))
    assert (half[0]["output"], half[0]["preliminary"]) == ("half", True)
    parts = grown(call("tool-output-available", output="whole"), parts=half)
    assert parts[0]["output"] == "whole"
    assert "preliminary" not in parts[0]


@pytest.mark.shows(chat_recovery="C-0372")
def test_an_output_error_leaves_no_output_behind() -> None:
    parts = grown(
        call("tool-input-available", input={}),
        call("tool-output-available", output="half", preliminary=True),
        call("tool-output-error", errorText="boom"),
    )
    assert (parts[0]["state"], parts[0]["errorText"]) == ("output-error", "boom")
    assert "output" not in parts[0]


@pytest.mark.shows(chat_recovery="C-0370")
def test_an_input_error_settles_a_call_that_was_never_seen() -> None:
    parts = grown(call("tool-input-error", input="{broken", errorText="invalid"))
    assert (parts[0]["state"], parts[0]["input"], parts[0]["errorText"]) == ("output-error", {}, "invalid")


@pytest.mark.shows(chat_recovery="C-0373 C-0374")
def test_an_approval_shows_the_input_that_was_streamed_and_may_be_denied() -> None:
    parts = grown(
        call("tool-input-start"),
        call("tool-input-delta", inputTextDelta='{"amount": 5}'),
        call("tool-approval-request", approvalId="ap", approvalDescriptor={"title": "Pay"}),
    )
    assert parts[0]["state"] == "approval-requested"
    assert parts[0]["input"] == {"amount": 5}
    assert parts[0]["approval"] == {"id": "ap", "descriptor": {"title": "Pay"}}
    assert grown(call("tool-output-denied"), parts=parts)[0]["state"] == "output-denied"


def test_an_approval_that_was_given_is_neither_asked_again_nor_turned_into_a_denial() -> None:
    parts = [{**grown(call("tool-input-available", input={}))[0], "state": "approval-responded"}]
    assert apply_chunk(parts, call("tool-approval-request", approvalId="ap")) is parts
    assert apply_chunk(parts, call("tool-output-denied")) is parts


ASKED: dict[str, Any] = {"id": "ap", "descriptor": {"cost": 3}}
STORED: dict[str, dict[str, Any]] = {
    "one that was not made": {"state": "input-available"},
    "one that asks": {"state": "approval-requested", "approval": ASKED},
    "one that is allowed": {"state": "approval-responded", "approval": {**ASKED, "approved": True}},
    "one that is declined": {"state": "output-denied", "approval": {**ASKED, "approved": False}},
    "one with an output": {"state": "output-available", "output": None, "providerExecuted": True},
    "one that was allowed": {"state": "output-available", "output": [1], "approval": {**ASKED, "approved": True}},
    "one that failed": {"state": "output-error", "errorText": "no", "title": "Dig"},
}


@pytest.mark.parametrize("stored", STORED.values(), ids=STORED)
def test_a_stored_call_is_told_by_events_that_make_the_same_call(stored: dict[str, Any]) -> None:
    part: Any = {"type": "tool-dig", "toolCallId": "c", "toolName": "dig", "input": {"a": 1}, **stored}
    parts: list[Any] = []
    for event in events_of(part, "p"):
        parts = apply_chunk(parts, event)
    assert parts == [part]


def test_several_chunks_may_share_a_body_and_what_is_none_is_left_out() -> None:
    several = {"type": "chunks", "chunks": [{"type": "a"}, 3, json.dumps({"type": "b"})]}
    assert [each["type"] for each in chunks_of(several)] == ["a", "b"]
    assert [each["type"] for each in chunks_of(json.dumps({"type": "c"}))] == ["c"]
    assert chunks_of({"type": "chunks", "chunks": 3}) == chunks_of("no JSON") == []


# --- what is not a chunk


@pytest.mark.shows(chat_recovery="C-0383 C-0408")
@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"type": 7},
        {"type": "start", "messageId": "m"},
        {"type": "finish"},
        {"type": "no-such-chunk"},
        {"type": "text-delta"},
        {"type": "text-delta", "delta": 3},
        {"type": "text-end", "id": "unknown"},
        {"type": "finish-step"},
        {"type": "tool-input-start", "toolCallId": "c"},
        {"type": "tool-input-start", "toolName": "search"},
        {"type": "tool-input-delta", "toolCallId": "unknown", "inputTextDelta": "x"},
        {"type": "tool-output-available", "toolCallId": "unknown", "output": 1},
        {"type": "tool-output-error", "toolCallId": ["no", "id"]},
    ],
)
def test_a_chunk_that_is_malformed_unknown_or_about_an_unknown_call_changes_nothing(chunk: dict[str, Any]) -> None:
    parts: list[Part] = [{"type": "text", "text": "a", "state": "done"}]
    assert apply_chunk(parts, chunk) is parts


def test_a_body_is_a_chunk_or_the_json_text_of_one() -> None:
    chunk = text("a")
    assert chunk_of(chunk) == chunk_of(json.dumps(chunk)) == chunk
    for body in ("{", "[]", "7", None, 7, ["text-delta"], "[" * 100_000):
        assert chunk_of(body) is None


KINDS = (
    "text-start text-delta text-end reasoning-start reasoning-delta reasoning-end start-step finish-step file "
    "source-url data-x tool-input-start tool-input-delta tool-input-available tool-input-error tool-approval-request "
    "tool-output-denied tool-output-available tool-output-error"
).split()
ANYTHING = (
    st.none()
    | st.booleans()
    | st.integers(0, 2)
    | st.sampled_from(["a", "b", "", '{"k": [1', "\ud800"])
    | st.just({"k": 1})
)
FIELDS = "id delta toolCallId toolName input inputTextDelta output errorText providerMetadata transient dynamic".split()
CHUNKS = st.fixed_dictionaries({"type": st.sampled_from(KINDS)}, optional=dict.fromkeys(FIELDS, ANYTHING))


@pytest.mark.shows(chat_recovery="C-0391 C-0442")
@given(st.lists(CHUNKS, max_size=12))
def test_any_chunks_give_new_lists_and_leave_the_old_parts_and_the_chunks_as_they_were(
    chunks: list[dict[str, Any]],
) -> None:
    parts: list[Part] = []
    for chunk in chunks:
        parts_before, chunk_before = deepcopy(parts), deepcopy(chunk)
        once, again = apply_chunk(parts, chunk), apply_chunk(parts, chunk)
        assert once == again
        assert (parts, chunk) == (parts_before, chunk_before)
        assert once is not parts or once == parts_before
        parts = once


# --- the table of calls

STATES = [None, *ToolState]
MOVES = """
    tool-input-start       input-streaming - - - - - - -
    tool-input-delta       - input-streaming - - - - - -
    tool-input-available   input-available input-available - - - - - -
    tool-input-error       output-error output-error output-error output-error output-error - - -
    tool-approval-request  - approval-requested approval-requested approval-requested - - - -
    tool-approval-response - - approval-responded approval-responded - - - -
    tool-output-denied     - output-denied output-denied output-denied - - - -
    tool-output-available  - output-available output-available output-available output-available output-available \
        output-available output-available
    tool-output-error      - output-error output-error output-error output-error output-error output-error output-error
"""
ROWS = {row.split()[0]: row.split()[1:] for row in MOVES.replace("\\\n", " ").strip().splitlines()}


@pytest.mark.parametrize(("kind", "state"), list(product(ROWS, STATES)))
def test_each_cell_of_the_table_is_what_it_says_and_a_chunk_moves_a_call_so(kind: str, state: ToolState | None) -> None:
    expected = ROWS[kind][STATES.index(state)]
    cell = call_cell(kind, state)
    assert (cell or "-") == expected
    before: list[Part] = (
        [] if state is None else [{"type": "tool-search", "toolCallId": "call-1", "state": state.value}]
    )
    chunk = call(kind, input={}, inputTextDelta="{", approved=True, output=1, errorText="no")
    after = apply_chunk(before, chunk)
    if cell is None:
        assert after is before
    else:
        assert after[0]["state"] == expected
        assert type(after[0]["state"]) is str, "what stands in a message is plain data"


@pytest.mark.parametrize(("kind", "state"), list(product(ROWS, sorted(TOOL_SETTLED))))
def test_only_another_outcome_moves_a_settled_call(kind: str, state: ToolState) -> None:
    cell = call_cell(kind, state)
    assert cell is None or kind in ("tool-output-available", "tool-output-error")


def test_a_refused_approval_is_a_denied_call() -> None:
    asked: list[Part] = [{"type": "tool-search", "toolCallId": "call-1", "state": "approval-requested"}]
    assert grown(call("tool-approval-response", approved=False), parts=asked)[0]["state"] == "output-denied"
