from __future__ import annotations

from typing import Any

import pytest

from perdure.policies import (
    ContextOverflow,
    InvalidValue,
    Message,
    Part,
    cut,
    estimated_tokens,
    question_starts,
    retold,
    steered_part,
    step_starts,
    steps_of,
)

STEP: Part = {"type": "step-start"}


def said(role: str, *parts: Any) -> Message:
    return {"id": "m", "role": role, "parts": list(parts)}  # type: ignore[typeddict-item]


def text(words: str) -> Part:
    return {"type": "text", "text": words}


def call(state: str = "output-available", **more: Any) -> Part:
    told: dict[str, Any] = {
        "type": "dynamic-tool",
        "toolName": "look",
        "toolCallId": "c",
        "input": {"at": 1},
        "state": state,
    }
    return {**told, **more}  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("sizes", "starts", "keep", "at"),
    [
        ([10, 10, 10, 10], [1, 2, 3], 20, 2),
        ([10, 10, 10, 10], [1, 2, 3], 1_000, 2),  # at most half stays
        ([10, 10, 10, 10], [1, 3], 25, 3),
        ([1, 1, 100], [1, 2], 20, 2),  # the last place, though it is too long
        ([10, 10], [], 20, None),
        ([], [], 20, None),
        ([0, 0, 0], [1, 2], 0, 1),
    ],
)
def test_a_conversation_is_cut_where_little_enough_is_kept(
    sizes: list[int], starts: list[int], keep: int, at: int | None
) -> None:
    assert cut(sizes, starts, keep) == at


@pytest.mark.parametrize(
    ("roles", "first", "starts"),
    [
        ("uauau", 0, [2, 4]),
        ("uauau", 1, [2, 4]),
        ("ua", 0, []),
        ("au", 0, [1]),
        ("aaa", 0, [1, 2]),
        ("u", 0, []),
        ("", 0, []),
    ],
)
def test_a_question_is_not_cut_off_from_its_answer(roles: str, first: int, starts: list[int]) -> None:
    messages = [said({"u": "user", "a": "assistant"}[role]) for role in roles]
    assert question_starts(messages, first) == starts


def test_an_answer_is_cut_between_steps_whose_calls_have_their_results() -> None:
    settled, waiting = [STEP, call()], [STEP, call("input-available")]
    assert steps_of([]) == []
    assert steps_of([text("imported"), *settled, *settled]) == [[text("imported"), *settled], settled]
    assert step_starts([settled, settled, settled]) == [1, 2]
    assert step_starts([settled, waiting, settled]) == [1]
    assert step_starts([waiting, settled]) == []
    assert step_starts([settled]) == step_starts([]) == []


def test_what_is_summarised_is_told_as_one_text_and_long_pieces_are_clipped() -> None:
    file: Part = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,AAAA"}
    talk = [
        said("user", text("Where is it?"), file),
        said("assistant", STEP, call(output="x" * 3_000), call("output-error", errorText="no"), text("There.")),
        said("assistant", call("output-denied"), call("input-available"), text("")),
    ]
    assert retold(talk, 300).split("\n\n") == [
        "User: Where is it?",
        "User gave a file: image/png",
        f'Assistant called look({{"at": 1}}): {"x" * 200} [… 2,700 characters …] {"x" * 100}',
        'Assistant called look({"at": 1}): it failed: no',
        "Assistant: There.",
        'Assistant called look({"at": 1}): the user declined it',
        'Assistant called look({"at": 1}): there is no result yet',
    ]


def test_what_a_person_said_in_an_answer_is_summarised_and_counted_as_that_person_s() -> None:
    message: Message = {"id": "s-0", "role": "user", "parts": [text("Not there!")]}
    talk = [said("assistant", STEP, call(output="x"), steered_part("s", "1", message), STEP, text("Here?"))]
    assert retold(talk, 300).split("\n\n")[1:] == ["User: Not there!", "Assistant: Here?"]
    assert estimated_tokens([steered_part("s", "1", message)]) == estimated_tokens(message["parts"]) == 3
    assert steps_of(talk[0]["parts"])[0][-1]["type"] == "data-steered"


def test_tokens_are_estimated_by_characters() -> None:
    assert estimated_tokens([STEP]) == 0
    assert estimated_tokens([text("1234"), text("12345")]) == 3
    assert estimated_tokens([{"type": "file", "mediaType": "image/png", "url": "https://a.example/b.png"}]) == 1_500
    assert estimated_tokens([call(output={"found": "x" * 400})]) > 100


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (True, ContextOverflow()),
        (None, ContextOverflow()),
        (False, ContextOverflow(reactive=False)),
        ({"max_retries": 0, "max_input_tokens": 5}, ContextOverflow(max_retries=0, max_input_tokens=5)),
        (ContextOverflow(keep_tokens=1), ContextOverflow(keep_tokens=1)),
    ],
)
def test_the_author_says_what_becomes_of_a_conversation_that_is_too_long(given: object, found: ContextOverflow) -> None:
    assert ContextOverflow.of(given) == found


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"retries": 1}, "'retries' is none of its fields"),
        (5, "5 is neither a ContextOverflow nor a mapping"),
        ({"reactive": 1}, "reactive: 1 is neither True nor False"),
        ({"max_retries": -1}, "max_retries: -1"),
        ({"keep_tokens": 1.5}, "keep_tokens: 1.5"),
        ({"max_input_tokens": 0}, "max_input_tokens: 0"),
    ],
)
def test_what_makes_no_sense_is_refused_by_the_name_of_its_field(given: object, words: str) -> None:
    with pytest.raises((TypeError, InvalidValue), match=words):
        ContextOverflow.of(given)
