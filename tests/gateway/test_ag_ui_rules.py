"""Whatever chunks and frames come, in whatever order: what comes out is a stream that AG-UI's client accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.actors.ag_ui.run_events import AgUiRun, changes_of, interrupt_id, interrupt_of
from perdure.actors.ag_ui.turn_translation import asking, conversation, encoded, input_of
from perdure.actors.events.message_parts import apply_chunk
from perdure.ledger import BadRequest
from tests.gateway.ag_ui_rules import Broken, Verifier, verify
from tests.gateway.door import events

IDS = st.sampled_from(["text-0", "text-1", "reasoning-0"])
CALLS = st.sampled_from(["c0", "c1", "c2"])
TEXT = st.text(max_size=5)


def chunk(kind: str, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"type": st.just(kind), **fields})


def call(kind: str, **fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return chunk(kind, toolCallId=CALLS, toolName=st.just("add"), **fields)


CHUNKS = st.one_of(
    *(chunk(f"{kind}-{what}", id=IDS) for kind in ("text", "reasoning") for what in ("start", "end")),
    *(chunk(f"{kind}-delta", id=IDS, delta=TEXT) for kind in ("text", "reasoning")),
    chunk("start-step"),
    chunk("finish-step", finishReason=st.sampled_from(["stop", "interrupted"]), usage=st.just({"input_tokens": 1})),
    call("tool-input-start"),
    call("tool-input-delta", inputTextDelta=TEXT),
    call("tool-input-available", input=st.dictionaries(TEXT, st.integers(), max_size=2)),
    call("tool-input-error", errorText=TEXT),
    call("tool-approval-request", approvalId=st.just("a")),
    call("tool-approval-response", approved=st.booleans()),
    call("tool-output-available", output=st.one_of(TEXT, st.integers(), st.none())),
    call("tool-output-error", errorText=TEXT),
    call("tool-output-denied"),
    chunk("data-retract", data=st.fixed_dictionaries({"parts": st.integers(0, 6)}), transient=st.just(True)),
    chunk("data-status", data=st.just({"waitingFor": ["c0"]}), transient=st.just(True)),
    chunk("file", mediaType=st.just("image/png"), url=st.just("data:,")),
    chunk("something-new", value=TEXT),
)
FRAMES = st.builds(
    lambda run, event: {"run_id": run, "parent_tool_call_id": "c0", "event": event},
    st.sampled_from(["run-0", "run-1"]),
    st.one_of(
        st.just({"kind": "started", "agent_type": "shop:Packer", "order": 0}),
        st.builds(lambda number: {"kind": "attempt", "attempt": number}, st.integers(1, 4)),
        st.builds(lambda body: {"kind": "chunk", "body": body}, CHUNKS),
        st.just({"kind": "progress", "at_ms": 1, "fraction": 0.5}),
        st.just({"kind": "milestone", "name": "m", "milestone_sequence": 0, "at_ms": 1}),
        st.just({"kind": "finished", "summary": "s", "output": None}),
        st.just({"kind": "error", "error": ""}),
        st.just({"kind": "aborted", "reason": "r"}),
        st.just({"kind": "interrupted", "error": "e"}),
        st.just({"kind": "retried"}),
    ),
)
ENDS = st.sampled_from(["succeeded", "cancelled", "failed", "parked"])


def ended(run: AgUiRun, end: str) -> Any:
    return getattr(run, end)(*(("it broke", "error") if end == "failed" else ()))


@pytest.mark.shows(clients="P-187")
@settings(deadline=None, max_examples=120)
@given(
    skipped=st.lists(CHUNKS, max_size=8),
    told=st.lists(st.one_of(CHUNKS, CHUNKS, FRAMES), max_size=40),
    end=ENDS,
    is_agent=st.booleans(),
)
def test_every_order_of_chunks_and_frames_is_a_legal_run(
    skipped: list[Any], told: list[Any], end: str, is_agent: bool
) -> None:
    run = AgUiRun("t", "r")
    found = [*run.begin(), *run.state({})]
    run.follow("turn", frozenset({"answered"}))
    for each in skipped:
        assert not run.event(each)
    run.event({"type": "tool-approval-response", "toolCallId": "answered", "approved": True})
    for each in told:
        found += run.frame(each, is_agent=is_agent) if "event" in each else run.event(each)
    found += ended(run, end)
    wire = encoded(found)
    assert b"\r" not in wire
    verify(events(wire))


def told_by_a_client(found: list[dict[str, Any]]) -> dict[str, str]:
    """The texts that a client has in the end."""
    texts: dict[str, str] = {}
    for each in found:
        if each["type"] == "MESSAGES_SNAPSHOT":
            texts = {each["id"]: each.get("content", "") for each in each["messages"] if each["role"] == "assistant"}
        elif each["type"] == "TEXT_MESSAGE_START":
            texts.setdefault(each["messageId"], "")
        elif each["type"] == "TEXT_MESSAGE_CONTENT":
            texts[each["messageId"]] += each["delta"]
    return texts


@settings(deadline=None, max_examples=100)
@given(told=st.lists(CHUNKS, max_size=40))
def test_what_a_client_reads_in_the_end_is_what_the_message_says(told: list[Any]) -> None:
    run = AgUiRun("t", "r")
    run.follow("turn")
    found, parts = run.begin(), list[Any]()
    for each in told:
        found += run.event(each)
        parts = apply_chunk(parts, each)
    said = "".join(told_by_a_client(events(encoded(found))).values())
    assert said == "".join(part["text"] for part in parts if part["type"] == "text")


BAD: list[tuple[str, list[dict[str, Any]]]] = [
    ("first", [{"type": "RUN_FINISHED"}]),
    ("second start", [{"type": "RUN_STARTED"}, {"type": "RUN_STARTED"}]),
    ("after the end", [{"type": "RUN_STARTED"}, {"type": "RUN_FINISHED"}, {"type": "CUSTOM"}]),
    ("after an error", [{"type": "RUN_STARTED"}, {"type": "RUN_ERROR"}, {"type": "RUN_FINISHED"}]),
    ("opened twice", [{"type": "RUN_STARTED"}, *[{"type": "TEXT_MESSAGE_START", "messageId": "m"}] * 2]),
    ("not open", [{"type": "RUN_STARTED"}, {"type": "TOOL_CALL_ARGS", "toolCallId": "c", "delta": ""}]),
    (
        "still open",
        [{"type": "RUN_STARTED"}, {"type": "REASONING_START", "messageId": "m"}, {"type": "RUN_FINISHED"}],
    ),
    ("step", [{"type": "RUN_STARTED"}, {"type": "STEP_FINISHED", "stepName": "s"}]),
    ("open step", [{"type": "RUN_STARTED"}, {"type": "STEP_STARTED", "stepName": "s"}, {"type": "RUN_FINISHED"}]),
    ("subagent", [{"type": "RUN_STARTED"}, {"type": "SUBAGENT_FINISHED", "subagentRunId": "s"}]),
    (
        "subagent again",
        [
            {"type": "RUN_STARTED"},
            {"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "n"},
            {"type": "SUBAGENT_FINISHED", "subagentRunId": "s"},
            {"type": "SUBAGENT_STARTED", "subagentRunId": "s", "name": "n"},
        ],
    ),
    (
        "another's",
        [
            {"type": "RUN_STARTED"},
            {"type": "TEXT_MESSAGE_START", "messageId": "m"},
            {"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": "", "subagentRunId": "s"},
        ],
    ),
    ("null", [{"type": "RUN_STARTED", "subagentRunId": None}]),
]


@pytest.mark.parametrize(("rule", "stream"), BAD, ids=[rule for rule, _ in BAD])
def test_the_checker_finds_what_the_client_refuses(rule: str, stream: list[dict[str, Any]]) -> None:
    verifier = Verifier()
    for event in stream[:-1]:
        verifier.take(event)
    with pytest.raises(Broken):
        verifier.take(stream[-1])


@given(request=st.text(min_size=1), called=st.text(min_size=1))
def test_an_interrupt_names_its_turn_and_its_call(request: str, called: str) -> None:
    try:
        made = interrupt_id(request, called)
    except UnicodeEncodeError:  # half of a surrogate pair is in no id
        return
    assert interrupt_of(made) == (request, called)


STATES = st.dictionaries(st.text(max_size=3), st.one_of(st.integers(), st.none(), st.text(max_size=2)), max_size=4)


@given(before=STATES, now=STATES)
def test_the_changes_of_a_state_make_the_next_one(before: dict[str, Any], now: dict[str, Any]) -> None:
    made = dict(before)
    for change in changes_of(before, now):
        key = change["path"][1:].replace("~1", "/").replace("~0", "~")
        if change["op"] == "remove":
            del made[key]
        else:
            assert (key in made) == (change["op"] == "replace")
            made[key] = change["value"]
    assert made == now


def request(*messages: dict[str, Any]) -> Any:
    given = {"threadId": "t", "runId": "r", "messages": messages, "tools": [], "context": [], "state": {}}
    return input_of(json.dumps(given).encode())


def test_only_the_users_messages_at_the_end_are_answered() -> None:
    user = {"id": "1", "role": "user", "content": "a"}
    answer = {"id": "2", "role": "assistant", "content": "b"}
    asked = {"id": "3", "role": "user", "content": [{"type": "text", "text": "c"}]}
    assert [each["id"] for each in asking(request(user, answer, asked))] == ["3"]
    assert asking(request(user, answer)) == []
    image = {"type": "image", "source": {"type": "data", "value": "AA==", "mimeType": "image/png"}}
    (found,) = asking(request({**user, "content": [image]}))
    assert found["parts"] == [{"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AA=="}]
    at_provider = {"type": "image", "source": {"type": "file", "value": "file-1"}}
    with pytest.raises(BadRequest, match=r"messages\[0\].content\[0\]"):
        asking(request({**user, "content": [at_provider]}))


def test_a_transcript_is_told_with_its_calls_and_results() -> None:
    parts = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "hm"},
        {
            "type": "tool-add",
            "toolCallId": "c",
            "toolName": "add",
            "state": "output-available",
            "input": {},
            "output": 3,
        },
        {"type": "text", "text": "three"},
    ]
    told = conversation([{"id": "a", "role": "assistant", "parts": parts}])
    assert [each.role for each in told] == ["reasoning", "assistant", "tool", "assistant"]
    assert [each.id for each in told] == ["a-0", "a-1", "c-result", "a-3"]
