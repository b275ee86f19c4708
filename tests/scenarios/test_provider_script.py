"""The scripted model answers any conversation that a recovery can make, and an illegal request is told what is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perdure.policies import NoResult, caution
from perdure.scenarios.provider.events import (
    ArgumentsDelta,
    CallStart,
    Done,
    Event,
    Finish,
    Role,
    Text,
    frames,
)
from perdure.scenarios.provider.faults import End, Fault, FaultKind, FaultPlan, Rule, place_of
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion, answer, conclusion
from perdure.scenarios.provider.scripted import ScriptedProvider, problems
from tests.scenarios.listening import ASK, READ, SCRIPT, SEARCH, WRITE, every_place

QUESTION = SCRIPT.questions[0]


def text_in(events: tuple[Event, ...]) -> str:
    return "".join(event.text for event in events if isinstance(event, Text))


def calls_in(events: tuple[Event, ...]) -> list[ScriptedCall]:
    names = {event.index: event.name for event in events if isinstance(event, CallStart)}
    written: dict[int, str] = dict.fromkeys(names, "")
    for event in events:
        if isinstance(event, ArgumentsDelta):
            written[event.index] += event.text
    return [ScriptedCall(name=names[at] or "", arguments=json.loads(text)) for at, text in written.items()]


def ids_in(events: tuple[Event, ...]) -> list[str | None]:
    return [event.id for event in events if isinstance(event, CallStart)]


def half(*pairs: tuple[ScriptedCall, str], said: str = "", stem: str = "c") -> list[dict[str, Any]]:
    """An assistant's message with these calls, and their results."""
    calls = [
        {
            "id": f"{stem}{at}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for at, (call, _) in enumerate(pairs)
    ]
    results = [{"role": "tool", "tool_call_id": f"{stem}{at}", "content": text} for at, (_, text) in enumerate(pairs)]
    return [{"role": "assistant", "content": said or None, "tool_calls": calls}, *results]


ROUND_1 = half((READ, "r"), (SEARCH, "s"))
ROUND_2 = half((WRITE, "w"), stem="d")


def test_the_model_works_a_question_off_round_by_round_and_states_the_digest_of_every_result() -> None:
    first = answer(SCRIPT, [ASK], 1)
    assert text_in(first) == "I read and I search → at once."
    assert calls_in(first) == [READ, SEARCH]
    assert calls_in(answer(SCRIPT, [ASK, *ROUND_1], 2)) == [WRITE]
    last = answer(SCRIPT, [ASK, *ROUND_1, *ROUND_2], 3)
    assert calls_in(last) == []
    assert text_in(last) == conclusion(QUESTION, ["r", "s", "w"])
    assert [event.reason for event in last if isinstance(event, Finish)] == ["stop"]
    assert text_in(last) != conclusion(QUESTION, ["r", "s", "x"])


def test_the_same_request_again_is_answered_alike_but_with_fresh_call_ids() -> None:
    once, again = answer(SCRIPT, [ASK], 1), answer(SCRIPT, [ASK], 2)
    assert calls_in(once) == calls_in(again)
    assert not set(ids_in(once)) & set(ids_in(again))
    assert answer(SCRIPT, [ASK], 1) == once


def test_of_a_round_that_was_cut_short_only_the_missing_calls_are_asked_for_and_nothing_is_said_again() -> None:
    events = answer(SCRIPT, [ASK, *half((SEARCH, "s"))], 2)
    assert calls_in(events) == [READ]
    assert text_in(events) == ""


def test_a_half_text_is_gone_on_with_from_where_it_stops() -> None:
    spoken = [
        ASK,
        *ROUND_1,
        *ROUND_2,
        {"role": "assistant", "content": "Stock tak"},
        {"role": "user", "content": "continue"},
    ]
    whole = conclusion(QUESTION, ["r", "s", "w"])
    assert "Stock tak" + text_in(answer(SCRIPT, spoken, 4)) == whole
    begun = [ASK, {"role": "assistant", "content": "I read and I"}]
    assert text_in(answer(SCRIPT, begun, 2)) == " search → at once."
    assert text_in(answer(SCRIPT.model_copy(update={"prefill": "restart"}), begun, 2)).startswith("I read")
    rewritten = [*spoken[:-2], {"role": "assistant", "content": "something else"}]
    assert text_in(answer(SCRIPT, rewritten, 4)) == whole


def told(why: NoResult, effect: str = "once") -> str:
    return caution(why, READ.name, "c0", effect=effect)


@pytest.mark.parametrize("text", [told(NoResult.NEVER_RAN), told(NoResult.CUT_OFF), told(NoResult.DIED, "pure")])
def test_a_call_that_may_be_repeated_is_asked_for_again_but_not_for_ever(text: str) -> None:
    again = [ASK, *half((READ, text), (SEARCH, "s"))]
    assert calls_in(answer(SCRIPT, again, 2)) == [READ]
    for stem in "efg":
        again += half((READ, text), stem=stem)
    assert calls_in(answer(SCRIPT, again, 6)) == [WRITE]


@pytest.mark.parametrize(
    "text", [told(NoResult.DIED), told(NoResult.DIED, "idempotent"), told(NoResult.ABORTED_BEFORE)]
)
def test_a_call_that_must_not_be_repeated_is_not_asked_for_again(text: str) -> None:
    assert calls_in(answer(SCRIPT, [ASK, *half((READ, text), (SEARCH, "s"))], 2)) == [WRITE]


def test_the_newest_question_counts_and_other_users_messages_change_nothing() -> None:
    history = [ASK, *ROUND_1, *ROUND_2, {"role": "assistant", "content": "Done."}]
    assert calls_in(answer(SCRIPT, [*history, ASK], 4)) == [READ, SEARCH]
    steered = [ASK, *ROUND_1, {"role": "user", "content": "Hurry up!"}]
    assert calls_in(answer(SCRIPT, steered, 2)) == [WRITE]
    assert text_in(answer(SCRIPT, [{"role": "user", "content": "hello"}], 1)) == SCRIPT.otherwise


def test_verbatim_replies_come_first_one_for_each_assistant_message() -> None:
    odd = (Role(), CallStart(name="read_file"), Finish(reason="tool_calls"), Done())
    script = Script(questions=(ScriptedQuestion(asks="odd", rounds=(Round(calls=(READ,)),), verbatim=(odd,)),))
    asked = [{"role": "user", "content": "odd"}]
    assert answer(script, asked, 1) == odd
    assert calls_in(answer(script, [*asked, *half((WRITE, "?"))], 2)) == [READ]


def test_a_question_does_not_ask_twice_for_the_same() -> None:
    with pytest.raises(ValidationError, match="asks twice for read_file"):
        ScriptedQuestion(asks="x", rounds=(Round(calls=(READ,)), Round(calls=(READ,))))


# places


def test_every_frame_of_a_reply_has_places_before_it_and_inside_of_it() -> None:
    body = frames(answer(SCRIPT, [ASK], 1), "id", "m")
    sizes = [len(frame) for frame in body]
    places = [place_of(body, fault) for fault in every_place(sizes) if fault.kind is FaultKind.END]
    assert len(places) == len(set(places)) == 2 * len(body) + 1
    assert places[0] == 0
    assert places[-1] == sum(sizes)


def test_a_place_inside_of_a_frame_is_inside_of_a_character_if_it_has_one() -> None:
    body = frames([Text(text="ab→c")], "id", "m")
    place = place_of(body, Fault(kind=FaultKind.END, event=0, inside=True))
    with pytest.raises(UnicodeDecodeError):
        body[0][:place].decode()


def test_events_count_from_the_end_too_and_no_place_lies_beyond_it() -> None:
    body = frames([Role(), Finish(), Done()], "id", "m")
    sentinel = len(body[0]) + len(body[1])
    assert place_of(body, Fault(kind=FaultKind.RESET, event=-1)) == sentinel
    assert place_of(body, Fault(kind=FaultKind.RESET, event=-9)) == 0
    assert place_of(body, Fault(kind=FaultKind.RESET, event=99)) == sentinel + len(body[2])
    assert place_of(body, Fault(kind=FaultKind.RESET, byte=10**6)) == sentinel + len(body[2])
    assert place_of(body, Fault(kind=FaultKind.RESET)) is None
    assert place_of(body, Fault(kind=FaultKind.END)) == 0


# which request a rule means


def asked(scripted: ScriptedProvider, *messages: dict[str, Any]) -> FaultKind | None:
    scripted.receive(json.dumps({"model": "m", "stream": True, "messages": messages or [ASK]}).encode(), 0.0)
    fault = scripted.records[-1].fault
    return fault.kind if fault else None


def test_a_rule_means_a_number_a_question_or_a_count_of_results_and_is_used_up() -> None:
    scripted = ScriptedProvider(SCRIPT)
    end, reset = Fault(kind=FaultKind.END), Fault(kind=FaultKind.RESET)
    scripted.set_plan(FaultPlan(rules=(Rule(fault=reset, number=2), Rule(fault=end, asks="stock", results=2, times=2))))
    assert asked(scripted) is None
    assert asked(scripted) is FaultKind.RESET
    assert [asked(scripted, ASK, *ROUND_1) for _ in range(3)] == [FaultKind.END, FaultKind.END, None]
    scripted.set_plan(FaultPlan(rules=(Rule(fault=reset, times=None),)))
    assert [asked(scripted) for _ in range(3)] == [FaultKind.RESET] * 3


def test_numbers_count_from_the_moment_at_which_the_plan_was_set() -> None:
    scripted = ScriptedProvider(SCRIPT)
    asked(scripted)
    scripted.set_plan(FaultPlan.at({1: Fault(kind=FaultKind.END)}))
    assert asked(scripted) is FaultKind.END


def test_the_door_is_shut_from_the_request_before_until_so_long_after_the_last_reply() -> None:
    scripted = ScriptedProvider(
        SCRIPT, FaultPlan.at({2: Fault(kind=FaultKind.REFUSED, duration_ms=100), 3: Fault(kind=FaultKind.END)})
    )
    assert not scripted.is_shut(0)
    asked(scripted)
    assert scripted.is_shut(10)
    assert scripted.is_shut(500), "the reply is still open"
    scripted.ended(1, "whole", 0, 500)
    assert scripted.is_shut(510)
    assert scripted.shut_until_ms() == 610
    assert scripted.is_shut(609)
    assert not scripted.is_shut(610)
    assert asked(scripted) is None, "nobody saw the refused one, so this is the second"
    assert asked(scripted) is FaultKind.END


def test_an_illegal_request_is_refused_whatever_the_plan_says() -> None:
    scripted = ScriptedProvider(SCRIPT, FaultPlan.at({1: Fault(kind=FaultKind.END)}))
    assert asked(scripted, ASK, ROUND_1[0]) is None
    assert scripted.records[0].status == 400
    assert scripted.counters().illegal == 1


# pairing

CALL = half((READ, "r"))[0]
RESULT = half((READ, "r"))[1]
END = {"role": "assistant", "content": "ok"}


def with_call(**fields: Any) -> list[dict[str, Any]]:
    return [ASK, {**CALL, "tool_calls": [{**CALL["tool_calls"][0], **fields}]}, RESULT]


@pytest.mark.parametrize(
    "messages",
    [
        [ASK],
        [ASK, CALL, RESULT],
        [ASK, *ROUND_1, *ROUND_2, END, ASK],
        [ASK, ROUND_1[0], ROUND_1[2], ROUND_1[1]],
        [{"role": "system", "content": "Be brief."}, ASK, CALL, {**RESULT, "content": ""}],
        [ASK, {**CALL, "content": [{"type": "text", "text": "hm"}]}, RESULT],
    ],
)
def test_calls_with_their_results_right_after_them_are_legal(messages: list[dict[str, Any]]) -> None:
    assert problems({"messages": messages}) == []


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        ([ASK, CALL], "messages[2]: no tool message right after the call for c0"),
        ([ASK, CALL, END], "messages[2]: no tool message right after the call for c0"),
        ([ASK, CALL, ASK, RESULT], "messages[2]: no tool message right after the call for c0"),
        ([ASK, CALL, ASK, RESULT], "messages[3]: a second or late result for tool call c0"),
        ([ASK, CALL, RESULT, RESULT], "messages[3]: a second or late result for tool call c0"),
        ([ASK, RESULT], "messages[1]: a result for tool call c0, which was never made"),
        ([ASK, CALL, RESULT, CALL, RESULT], "messages[3]: the tool call id c0 was used before"),
        ([ASK, {**CALL, "tool_calls": CALL["tool_calls"] * 2}, RESULT], "the tool call id c0 was used before"),
        ([ASK, *ROUND_1[:2]], "messages[3]: no tool message right after the call for c1"),
        (with_call(function={"name": "f", "arguments": '{"a": 1'}), "the arguments are not a JSON object: '{\"a\": 1'"),
        (with_call(function={"name": "f", "arguments": "[1]"}), "the arguments are not a JSON object"),
        (with_call(function={"name": "f", "arguments": {}}), "the arguments are not a JSON object"),
        (with_call(function={"name": "", "arguments": "{}"}), "the function has no name"),
        (with_call(function=None), "a tool call without a function"),
        (with_call(id=""), "a tool call without an id"),
        ([ASK, {**CALL, "role": "user"}, RESULT], "`tool_calls` in a message of the user"),
        ([ASK, {**CALL, "tool_calls": []}], "`tool_calls` is not a list with at least one call"),
        ([ASK, CALL, {**RESULT, "tool_call_id": None}], "a tool message without `tool_call_id`"),
        ([ASK, CALL, {**RESULT, "content": None}], "there is no content"),
        ([ASK, {"role": "assistant", "content": ""}], "neither content nor tool calls"),
        ([{"role": "user", "content": ""}], "there is no content"),
        ([{"role": "user", "content": 7}], "neither text nor a list of parts"),
        ([{"role": "robot", "content": "hi"}], "the role is 'robot'"),
        (["hi"], "messages[0]: not an object"),
        ([], "`messages` is not a list with at least one message"),
    ],
)
def test_what_does_not_pair_is_named(messages: list[Any], problem: str) -> None:
    assert any(problem in each for each in problems({"messages": messages})), problems({"messages": messages})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from("role content tool_calls tool_call_id id function name text".split()), inner)
    ),
    max_leaves=12,
)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool"])}, optional={"content": JSON})
TALK = st.lists(MESSAGE | JSON | st.sampled_from([ASK, *ROUND_1, *ROUND_2]), max_size=6)


@given(st.fixed_dictionaries({}, optional={"messages": TALK | JSON, "tools": JSON, "stream_options": JSON}) | JSON)
def test_whatever_is_sent_is_answered_or_refused_and_can_be_written_down(body: Any) -> None:
    scripted = ScriptedProvider(SCRIPT)
    _, acts = scripted.receive(json.dumps(body).encode(), 0.0)
    assert isinstance(acts[-1], End)
    (record,) = scripted.log()
    assert record.model_dump_json()


@pytest.mark.parametrize("raw", [b"{", b'{"messages": NaN}', b'{"messages": "\\ud800"}', b"\xff", b"[" * 100_000])
def test_bytes_that_are_no_json_are_refused_and_said_so(raw: bytes) -> None:
    scripted = ScriptedProvider()
    scripted.receive(raw, 0.0)
    (problem,) = scripted.records[0].problems
    assert problem.startswith("the body is no JSON that a server takes")


def test_a_body_that_is_no_object_or_offers_no_tools_is_named() -> None:
    assert problems("x") == ["the body is not a JSON object"]
    assert problems({"messages": [ASK], "tools": []}) == ["`tools` is not a list with at least one tool"]
    assert problems({"messages": [ASK], "tools": [{}]}) == ["tools[0]: not a function with a name"]
