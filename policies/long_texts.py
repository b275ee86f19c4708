"""Splits an answer into messages of a limited length.

Each piece is as long as one message may be. The `text` of all pieces together is the whole text. `opening` and `closing` add the fences of
a code block that is split. A cut falls before a code block that fits into a message of its own; else after a blank line, a line or a word
in the second half of the piece; else between two visible characters (combining marks, joined emoji and flags stay whole).

While a text streams, the whole of it is split again and the messages that differ are edited. Early messages hardly ever change.

Limits count characters or, as Telegram does, UTF-16 units. An emoji has two of them.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

LIMIT_MIN: Final = 64
HEADER_MAX: Final = 24  # of a fence that is opened again; a longer one loses its header
_BACK_MAX: Final = 32  # characters of one visible character; hostile text may have more
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})([^`\n]*)$")
_JOINER, _SELECTORS, _SKINS, _FLAGS = "\u200d", "\ufe00\ufe0f", "\U0001f3fb\U0001f3ff", "\U0001f1e6\U0001f1ff"


class Counting(StrEnum):
    """What a limit counts."""

    CHARACTERS = "characters"
    UTF16 = "utf16"


# `opening` and `closing` are added fences.
class TextPiece(NamedTuple):
    text: str
    opening: str = ""
    closing: str = ""

    @property
    def shown(self) -> str:
        return f"{self.opening}{self.text}{self.closing}"


# An open code block: the characters that opened it, and its language.
class Fence(NamedTuple):
    mark: str
    header: str

    @property
    def opening(self) -> str:
        return f"{self.mark}{self.header}\n" if len(self.mark) + len(self.header) <= HEADER_MAX else "```\n"

    def closing(self, text: str) -> str:
        mark = self.mark if len(self.mark) + len(self.header) <= HEADER_MAX else self.mark[:HEADER_MAX]
        return mark if text.endswith("\n") else f"\n{mark}"


def length_of(text: str, counting: Counting = Counting.CHARACTERS) -> int:
    return len(text) if counting is Counting.CHARACTERS else len(text.encode("utf-16-le", "surrogatepass")) // 2


# Providers refuse lone surrogates and NULs: replacement characters take their places.
def sendable(text: str) -> str:
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole.replace("\x00", "\ufffd")


def spoken(parts: Iterable[Mapping[str, Any]]) -> str:
    """The text parts of an answer. A space is added between two that a tool call separated and that would run together."""
    said, was_parted = "", False
    for part in parts:
        if part.get("type") == "step-start":
            continue  # an answer that was cut off continues in the middle of its text
        if part.get("type") != "text":
            was_parted = was_parted or bool(said)
            continue
        text = str(part.get("text") or "")
        if was_parted and said and text and not said[-1].isspace() and not text[0].isspace():
            said += " "
        said += text
        was_parted = was_parted and not text
    return said


def split(text: str, limit: int, counting: Counting = Counting.CHARACTERS) -> list[TextPiece]:
    """Cut a text into pieces within the limit. A blank text has none. A limit below `LIMIT_MIN` has no room for fences and is raised."""
    limit = max(limit, LIMIT_MIN)
    pieces: list[TextPiece] = []
    fence: Fence | None = None
    rest = text if text.strip() else ""
    while rest:
        opening = fence.opening if fence is not None else ""
        room = limit - length_of(opening, counting)
        after = _fence_after(fence, rest)
        closing = after.closing(rest) if after is not None else ""
        if length_of(rest, counting) + length_of(closing, counting) <= room:
            pieces.append(TextPiece(rest, opening, closing))
            break
        at = _cut(rest, _fitting(rest, room - HEADER_MAX - 1, counting), fence)
        taken, rest = rest[:at], rest[at:]
        fence = _fence_after(fence, taken)
        pieces.append(TextPiece(taken, opening, fence.closing(taken) if fence is not None else ""))
    return pieces


def _fitting(text: str, room: int, counting: Counting) -> int:
    if counting is Counting.CHARACTERS:
        return max(1, min(room, len(text)))
    units = text[:room].encode("utf-16-le", "surrogatepass")[: 2 * room]
    if len(units) == 2 * room and 0xD8 <= units[-1] <= 0xDB:  # noqa: PLR2004 - the first half of a pair
        units = units[:-2]
    return max(1, len(units.decode("utf-16-le", "surrogatepass")))


def _cut(text: str, most: int, fence: Fence | None) -> int:
    window = text[:most]
    block = _block_at_end(window, fence)
    if block >= most // 4 and _block_length(text, block) <= most:
        return block
    for mark in ("\n\n", "\n", " "):
        found = window.rfind(mark)
        if found >= most // 2:
            return found + len(mark)
    # The nearest place that splits no visible character, if one is near.
    return next((most - back for back in range(min(_BACK_MAX, most - 1)) if not _joins(text, most - back)), most)


def _joins(text: str, at: int) -> bool:
    before, after = text[at - 1], text[at]
    if before in (_JOINER, "\r") or unicodedata.category(after).startswith("M") or after == _JOINER:
        return True
    if _SELECTORS[0] <= after <= _SELECTORS[1] or _SKINS[0] <= after <= _SKINS[1]:
        return True
    if not (_is_flag(before) and _is_flag(after)):
        return False
    run = 0
    while run < at and run < 2 * _BACK_MAX and _is_flag(text[at - 1 - run]):
        run += 1
    return run % 2 == 1


def _is_flag(character: str) -> bool:
    return _FLAGS[0] <= character <= _FLAGS[1]


def _fence_after(fence: Fence | None, text: str) -> Fence | None:
    for line in text.split("\n"):
        fence = _fence_after_line(fence, line)
    return fence


def _fence_after_line(fence: Fence | None, line: str) -> Fence | None:
    found = _FENCE.match(line.rstrip("\r"))
    if found is None:
        return fence
    mark, header = found[1], found[2].strip()
    if fence is None:
        return Fence(mark, header)
    closes = mark[0] == fence.mark[0] and len(mark) >= min(len(fence.mark), HEADER_MAX) and not header
    return None if closes else fence


def _block_at_end(window: str, fence: Fence | None) -> int:
    """The start of the code block that is open at the end of the window, or -1."""
    begins, at = -1, 0
    for line in window.split("\n"):
        before, fence = fence, _fence_after_line(fence, line)
        if fence is None:
            begins = -1
        elif before is None:
            begins = at
        at += len(line) + 1
    return begins


def _block_length(text: str, begins: int) -> int:
    fence: Fence | None = None
    length = 0
    for line in text[begins:].split("\n"):
        fence = _fence_after_line(fence, line)
        length += len(line) + 1
        if fence is None:
            break
    return length
