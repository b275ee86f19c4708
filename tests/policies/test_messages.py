"""How an answer becomes messages: nothing is lost, nothing is too long, and nothing is torn that belongs together."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.policies import Counting, length_of, sendable, split, spoken

PIECES = [
    "a",
    "b ",
    "`",
    "~",
    "\n",
    "\n\n",
    "é",
    "```",
    "```py\n",
    "\n```\n",
    "~~~\n",
    "👩‍👩‍👧‍👦",
    "e\u0301",
    "🇩🇪",
    "👍🏽",
    "x" * 30,
    " word" * 5,
]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=100).map("".join)


@pytest.mark.shows(messenger="M49 M72")
@settings(max_examples=150, deadline=None)
@given(TEXTS, st.integers(64, 130), st.sampled_from(list(Counting)))
def test_pieces_are_within_the_limit_and_together_they_are_the_text(text: str, limit: int, counting: Counting) -> None:
    """M49, M72: lossless, also at the edges; and in every piece that cuts a code block its fences pair."""
    pieces = split(text, limit, counting)
    assert "".join(piece.text for piece in pieces) == (text if text.strip() else "")
    assert all(length_of(piece.shown, counting) <= limit for piece in pieces)


def test_a_text_without_anything_to_be_seen_is_no_message() -> None:
    assert split("", 100) == split(" \n\n\t ", 100) == []


def test_a_text_is_cut_where_a_reader_would_cut_it() -> None:
    text = "First paragraph, which is rather long for one.\n\nSecond paragraph, and it is longer than what is left."
    assert [piece.text for piece in split(text, 100)] == [text[:48], text[48:]]
    assert split("word " * 40, 100)[0].text.endswith(" ")
    assert len(split("x" * 250, 100)[0].text) > 70, "hard, if there is no better place"


def test_a_code_block_that_is_cut_is_closed_and_opened_again() -> None:
    text = "Look:\n```python\n" + "print('x')\n" * 20 + "```\nDone."
    first, *others = split(text, 100)
    assert first.closing == "```"
    assert all(piece.opening == "```python\n" for piece in others)
    assert all(piece.shown.count("```") % 2 == 0 for piece in (first, *others))


def test_a_code_block_that_fits_into_a_message_of_its_own_is_not_cut() -> None:
    block = "```\n" + "code\n" * 10 + "```\n"
    pieces = split("Some words before it, and a few more.\n" + block + "After.", 100)
    assert pieces[0].text == "Some words before it, and a few more.\n"
    assert pieces[1].text.startswith(block)


@pytest.mark.parametrize("character", ["👩‍👩‍👧‍👦", "e\u0301", "🇩🇪", "👍🏽"])
def test_no_character_is_torn(character: str) -> None:
    """Joined emoji, combining marks, flags and skin tones stay whole; also the halves of a surrogate pair, which UTF-16 counts."""
    for pieces in (split(character * 60, 70), split(character * 60, 71, Counting.UTF16)):
        assert len(pieces) > 1
        assert all(set(piece.text.split(character)) == {""} for piece in pieces)


def test_a_pile_of_marks_on_one_letter_cannot_hold_up_a_cut() -> None:
    assert len(split("a" + "\u0301" * 500, 100)) > 4


def test_utf16_counts_an_emoji_twice() -> None:
    assert length_of("😀a") == 2
    assert length_of("😀a", Counting.UTF16) == 3


def test_what_cannot_be_sent_is_replaced() -> None:
    assert sendable("a\ud800b\x00c \ud83d\ude00") == "a\ufffdb\ufffdc 😀"


@pytest.mark.shows(chat_recovery="C-0414 C-0416 C-0417 C-0418 C-0724", messenger="M36")
def test_texts_that_a_tool_call_parted_do_not_run_together() -> None:
    """M36: one space, and only where there is none."""
    text, tool = (lambda words: {"type": "text", "text": words}), {"type": "tool-x"}
    assert spoken([text("One."), tool, text("Two.")]) == "One. Two."
    assert spoken([text("One. "), tool, text("Two.")]) == "One. Two."
    assert spoken([text("One"), text("Two")]) == "OneTwo"
    assert spoken([text("One."), tool, {"type": "step-start"}, tool, text("Two.")]) == "One. Two.", (
        "one for all of them"
    )
    assert spoken([tool, text("Two.")]) == "Two."
    assert spoken([text("One."), tool]) == "One."
    assert spoken([text("answ"), {"type": "step-start"}, text("ered")]) == "answered", "it broke off there, and went on"
