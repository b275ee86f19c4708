"""A transcript is repaired in place: every call gets an outcome, every input is an object, nothing is deleted (spec chat-recovery §6)."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import default_repair, repair_transcript
from perdure.policies.repair import INTERRUPTED_TEXT, Part, awaits_client, is_settled, is_tool_part, object_input

SETTLED = ["output-available", "output-error", "output-denied"]
OPEN = ["input-streaming", "input-available", "approval-requested", "never-heard-of"]


def call(state: str, **more: Any) -> Part:
    return {"type": "tool-search", "toolCallId": "c1", "state": state, "input": {"q": 1}, **more}


def message(*parts: Part, message_id: str = "m1") -> dict[str, Any]:
    return {"id": message_id, "role": "assistant", "parts": list(parts)}


def repaired_part(part: Part, **hooks: Any) -> Part:
    (only,) = repair_transcript([message(part)], **hooks).messages[0]["parts"]
    return only


@pytest.mark.shows(chat_recovery="C-0235 C-0302 C-0305 C-0787 C-0788 C-1026")
@pytest.mark.parametrize("state", SETTLED)
def test_c_0302_and_c_0305_a_settled_call_keeps_everything_and_its_message_keeps_its_identity(state: str) -> None:
    """C-0235: settled by its state."""
    messages = [message(call(state))]
    repaired = repair_transcript(messages)
    assert repaired.messages is messages
    assert repaired.changed_ids == ()


@pytest.mark.shows(chat_recovery="C-0234")
@pytest.mark.parametrize("key", ["output", "result"])
def test_c_0234_a_call_that_has_an_output_is_settled_whatever_its_state(key: str) -> None:
    part = call("input-available", **{key: None})
    assert is_settled(part)
    assert repaired_part(part) is part


@pytest.mark.shows(chat_recovery="C-0170 C-0236 C-0303 C-0304 C-1025", transport_recovery="41")
@pytest.mark.parametrize("state", OPEN)
def test_c_0303_and_c_0304_and_c_0236_an_open_call_becomes_an_error_in_its_place(state: str) -> None:
    before, after = {"type": "text", "text": "a"}, {"type": "text", "text": "b"}
    repaired = repair_transcript([message(before, call(state), after)])
    one, two, three = repaired.messages[0]["parts"]
    assert (one is before, three is after) == (True, True)
    assert two == call("output-error", errorText=INTERRUPTED_TEXT)
    assert (repaired.removed_tool_calls, repaired.tool_call_ids, repaired.changed_ids) == (1, ("c1",), ("m1",))


@pytest.mark.shows(chat_recovery="C-0174 C-0306 C-0975")
def test_c_0306_and_c_0174_a_call_that_was_answered_by_a_person_is_left_to_its_continuation() -> None:
    part = call("approval-responded", input="not an object", approval={"id": "a", "approved": True})
    assert repaired_part(part) is part


@pytest.mark.shows(chat_recovery="C-0307")
def test_c_0307_the_input_of_a_settled_call_is_put_right_and_its_error_is_kept() -> None:
    repaired = repair_transcript([message(call("output-error", input=[1], errorText="disk full"))])
    assert repaired.messages[0]["parts"] == [call("output-error", input={}, errorText="disk full")]
    assert (repaired.removed_tool_calls, repaired.normalized_inputs) == (0, 1)


@pytest.mark.shows(chat_recovery="C-0308")
def test_c_0308_the_input_of_an_open_call_is_put_right_before_its_repair() -> None:
    seen: list[Part] = []

    def repair(part: Part) -> Part:
        seen.append(part)
        return default_repair(part)

    repaired = repair_transcript([message(call("input-available", input='{"q": 2}'))], repair_part=repair)
    assert seen[0]["input"] == {"q": 2}
    assert (repaired.removed_tool_calls, repaired.normalized_inputs) == (1, 1)


@pytest.mark.shows(chat_recovery="C-0309")
def test_c_0309_a_dynamic_tool_is_a_tool() -> None:
    part = {"type": "dynamic-tool", "toolName": "search", "toolCallId": "c1", "state": "input-available", "input": {}}
    assert repaired_part(part)["state"] == "output-error"


@pytest.mark.shows(chat_recovery="C-0310")
@pytest.mark.parametrize(
    "part",
    [
        {"type": "text", "text": "x", "state": "streaming"},
        {"type": "tool-search", "state": "input-available"},
        {"type": "tool-search", "toolCallId": 7, "state": "input-available"},
        {"type": "toolbox", "toolCallId": "c1"},
        {"toolCallId": "c1"},
    ],
)
def test_c_0310_what_is_no_call_is_untouched(part: Part) -> None:
    assert not is_tool_part(part)
    assert repaired_part(part) is part


@pytest.mark.shows(chat_recovery="C-0311 C-1024")
def test_c_0311_a_custom_repair_may_return_any_part() -> None:
    text = {"type": "text", "text": "Which file do you mean?"}
    assert repaired_part(call("input-available"), repair_part=lambda part: text) is text


def test_a_custom_repair_may_settle_the_call_itself() -> None:
    own = call("output-available", output="unknown")
    assert repaired_part(call("input-available"), repair_part=lambda part: own) is own


BAD_REPAIRS: dict[str, object] = {
    "a call that is still open": call("input-available"),
    "another call": call("output-available", output=1, toolCallId="c2"),
    "a call without an id": {"type": "tool-search", "state": "output-available", "output": 1},
    "nothing": None,
    "no part": "text",
    "a part without a type": {"text": "x"},
}


@pytest.mark.shows(chat_recovery="W-30")
@pytest.mark.parametrize("bad", BAD_REPAIRS.values(), ids=BAD_REPAIRS)
def test_w_30_a_repair_that_would_be_lost_on_its_way_to_the_model_is_replaced_by_the_default(bad: object) -> None:
    part = repaired_part(call("input-available"), repair_part=lambda part: bad)
    assert part == call("output-error", errorText=INTERRUPTED_TEXT)


@pytest.mark.shows(chat_recovery="C-0171 C-0312")
def test_c_0312_and_c_0171_and_w_29_a_call_that_somebody_may_still_answer_is_spared() -> None:
    part = call("input-available", input="kept as it is")
    assert repaired_part(part, should_repair=lambda part: False) is part


@pytest.mark.shows(chat_recovery="C-0172 C-0173")
def test_c_0172_and_c_0173_each_part_is_judged_by_itself() -> None:
    asked, dead = call("approval-requested", toolCallId="c1"), call("input-available", toolCallId="c2")
    repaired = repair_transcript(
        [message(asked, message_id="m1"), message(dead, asked, message_id="m2")],
        should_repair=lambda part: not awaits_client(part, frozenset()),
    )
    assert repaired.tool_call_ids == ("c2",)
    assert repaired.changed_ids == ("m2",)
    assert repaired.messages[1]["parts"][1] is asked


@pytest.mark.shows(chat_recovery="C-0313")
def test_c_0313_all_messages_are_repaired_and_all_calls_named() -> None:
    messages = [message(call("input-available", toolCallId=f"c{n}"), message_id=f"m{n}") for n in range(3)]
    repaired = repair_transcript(messages)
    assert repaired.tool_call_ids == ("c0", "c1", "c2")
    assert repaired.changed_ids == ("m0", "m1", "m2")


INPUTS: dict[str, tuple[object, dict[str, Any]]] = {
    "an object": ({"a": 1}, {"a": 1}),
    "the text of an object": (' {"a": 1} ', {"a": 1}),
    "the beginning of one": ('{"a": 1', {}),
    "the text of a list": ("[1]", {}),
    "an empty text": ("", {}),
    "words": ("hello", {}),
    "two objects glued together": ('{"a": 1}{"b": 2}', {}),
    "a list": ([1], {}),
    "a number": (3, {}),
    "nothing": (None, {}),
}


@pytest.mark.shows(chat_recovery="C-0785 C-1027")
@pytest.mark.parametrize(("raw", "expected"), INPUTS.values(), ids=INPUTS)
def test_the_input_of_a_call_becomes_an_object(raw: object, expected: dict[str, Any]) -> None:
    assert object_input(raw) == expected


@pytest.mark.shows(chat_recovery="C-0786")
def test_a_missing_input_becomes_an_empty_object() -> None:
    assert repaired_part({"type": "tool-x", "toolCallId": "c", "state": "output-available", "output": 1})["input"] == {}


WAITS = {
    "an approval": (call("approval-requested"), True),
    "a tool of the client": (call("input-available", type="tool-camera"), True),
    "a dynamic tool of the client": (call("input-available", type="dynamic-tool", toolName="camera"), True),
    "c_0633 a tool of the server": (call("input-available"), False),
    "c_0635 a settled tool of the client": (call("output-available", type="tool-camera", output=1), False),
    "an answered approval": (call("approval-responded"), False),
    "a text": ({"type": "text", "text": "x"}, False),
}


@pytest.mark.parametrize(("part", "expected"), WAITS.values(), ids=WAITS)
def test_a_part_waits_for_the_client_if_only_the_client_can_settle_it(part: Part, expected: bool) -> None:
    assert awaits_client(part, frozenset({"camera"})) is expected


# --- properties --------------------------------------------------------------------------------------------------

PARTS = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, st.text(max_size=5)),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["tool-a", "dynamic-tool", "data-x"]),
            "toolCallId": st.sampled_from(["c1", "c2", 3]),
            "state": st.sampled_from([*SETTLED, *OPEN, "approval-responded"]),
            "input": st.one_of(st.none(), st.text(max_size=5), st.just('{"a": 1}'), st.just({"b": 2}), st.integers()),
        },
        optional={"output": st.integers()},
    ),
)
MESSAGES = st.lists(st.builds(lambda parts: message(*parts), st.lists(PARTS, max_size=4)), max_size=4)
SPARES = st.sampled_from([lambda part: True, lambda part: False, lambda part: part["toolCallId"] == "c1"])
REPAIRS = st.sampled_from(
    [default_repair, lambda part: {"type": "text", "text": "?"}, lambda part: None, lambda part: part]
)


@given(MESSAGES, SPARES, REPAIRS)
def test_repair_is_idempotent_and_leaves_what_it_was_given_alone(
    messages: list[dict[str, Any]], spare: Any, repair: Any
) -> None:
    before = copy.deepcopy(messages)
    once = repair_transcript(messages, spare, repair)
    twice = repair_transcript(once.messages, spare, repair)
    assert messages == before
    assert twice.messages is once.messages
    assert json.dumps(once.messages)


@given(MESSAGES, REPAIRS)
def test_repair_deletes_nothing_and_keeps_the_order(messages: list[dict[str, Any]], repair: Any) -> None:
    repaired = repair_transcript(messages, repair_part=repair)
    assert [len(each["parts"]) for each in repaired.messages] == [len(each["parts"]) for each in messages]
    for new, old in zip(repaired.messages, messages, strict=True):
        for after, prior in zip(new["parts"], old["parts"], strict=True):
            assert not is_tool_part(after) or is_settled(after) or prior["state"] == "approval-responded"


@pytest.mark.shows(chat_recovery="C-0175")
@given(MESSAGES)
def test_c_0175_the_same_transcript_is_repaired_to_the_same_bytes(messages: list[dict[str, Any]]) -> None:
    one, two = repair_transcript(messages), repair_transcript(copy.deepcopy(messages))
    assert json.dumps(one.messages) == json.dumps(two.messages)
    assert one.tool_call_ids == two.tool_call_ids
