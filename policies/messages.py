"""How an answer becomes messages of a limited length, and how text is counted.

Theory of operation
-------------------
A text is cut greedily into pieces, each as long as one message may be. The `text` of all pieces together is the text, character for
character; what a piece needs beside it to be read alone, the fences of a code block that goes on, stands in `opening` and `closing`. A cut
falls in front of a code block that would fit into a message of its own, else after a blank line, a line, a word, whichever comes in the
second half of the piece; else anywhere that breaks no character which a reader sees as one (combining marks, joined emoji, flags).

The function is pure, so who streams splits the whole text again with every look and edits what became different: early messages
hardly ever do.

Limits count characters or, as Telegram does, UTF-16 units, of which an emoji has two.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

LIMIT_MIN: Final = 64
HEADER_MAX: Final = 24  # of a fence that is opened again; a longer one is opened bare
_BACK_MAX: Final = 32  # characters that one visible character may have; hostile text may pile up more
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})([^`\n]*)$")
_JOINER, _SELECTORS, _SKINS, _FLAGS = "\u200d", "\ufe00\ufe0f", "\U0001f3fb\U0001f3ff", "\U0001f1e6\U0001f1ff"


class Counting(StrEnum):
    """What a limit counts."""

    CHARACTERS = "characters"
    UTF16 = "utf16"


class Piece(NamedTuple):
    """One message of a long text. `opening` and `closing` are fences that the text itself does not have there."""

    text: str
    opening: str = ""
    closing: str = ""

    @property
    def shown(self) -> str:
        """What a reader is shown."""
        return f"{self.opening}{self.text}{self.closing}"


class Fence(NamedTuple):
    """An open code block: the characters that opened it, and what is said about its language."""

    mark: str
    header: str

    @property
    def again(self) -> str:
        """The line that opens it in the next message."""
        return f"{self.mark}{self.header}\n" if len(self.mark) + len(self.header) <= HEADER_MAX else "```\n"

    def closing(self, text: str) -> str:
        """What closes it after a text."""
        mark = self.mark if len(self.mark) + len(self.header) <= HEADER_MAX else self.mark[:HEADER_MAX]
        return mark if text.endswith("\n") else f"\n{mark}"


def length_of(text: str, counting: Counting = Counting.CHARACTERS) -> int:
    """How long a limit finds a text."""
    return len(text) if counting is Counting.CHARACTERS else len(text.encode("utf-16-le", "surrogatepass")) // 2


def sendable(text: str) -> str:
    """A text that every provider can be sent: halves of surrogate pairs and NULs become replacement characters."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole.replace("\x00", "\ufffd")


def spoken(parts: Iterable[Mapping[str, Any]]) -> str:
    """The text of an answer: its text parts, with a space between two that a tool call parted and that would run together."""
    said, was_parted = "", False
    for part in parts:
        if part.get("type") == "step-start":
            continue  # an answer that broke off in its text goes on with the very next letter
        if part.get("type") != "text":
            was_parted = was_parted or bool(said)
            continue
        text = str(part.get("text") or "")
        if was_parted and said and text and not said[-1].isspace() and not text[0].isspace():
            said += " "
        said += text
        was_parted = was_parted and not text
    return said


def split(text: str, limit: int, counting: Counting = Counting.CHARACTERS) -> list[Piece]:
    """Cut a text into pieces that are each shown within the limit. None for a text without anything to be seen.

    A limit under `LIMIT_MIN` is taken for that: no code block could be opened and closed in less.
    """
    limit = max(limit, LIMIT_MIN)
    pieces: list[Piece] = []
    fence: Fence | None = None
    rest = text if text.strip() else ""
    while rest:
        opening = fence.again if fence is not None else ""
        room = limit - length_of(opening, counting)
        after = _fence_after(fence, rest)
        closing = after.closing(rest) if after is not None else ""
        if length_of(rest, counting) + length_of(closing, counting) <= room:
            pieces.append(Piece(rest, opening, closing))
            break
        at = _cut(rest, _fitting(rest, room - HEADER_MAX - 1, counting), fence)
        taken, rest = rest[:at], rest[at:]
        fence = _fence_after(fence, taken)
        pieces.append(Piece(taken, opening, fence.closing(taken) if fence is not None else ""))
    return pieces


def _fitting(text: str, room: int, counting: Counting) -> int:
    """How many characters of a text fit, at least one."""
    if counting is Counting.CHARACTERS:
        return max(1, min(room, len(text)))
    units = text[:room].encode("utf-16-le", "surrogatepass")[: 2 * room]
    if len(units) == 2 * room and 0xD8 <= units[-1] <= 0xDB:  # noqa: PLR2004 - the first half of a pair
        units = units[:-2]
    return max(1, len(units.decode("utf-16-le", "surrogatepass")))


def _cut(text: str, most: int, fence: Fence | None) -> int:
    """Where to cut, at `most` characters or before."""
    window = text[:most]
    block = _block_at_end(window, fence)
    if block >= most // 4 and _block_length(text, block) <= most:
        return block
    for mark in ("\n\n", "\n", " "):
        found = window.rfind(mark)
        if found >= most // 2:
            return found + len(mark)
    return _whole(text, most)


def _whole(text: str, at: int) -> int:
    """The nearest place before `at` that parts no visible character, if one is near."""
    for back in range(min(_BACK_MAX, at - 1)):
        if not _joins(text, at - back):
            return at - back
    return at


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
    """The code block that is open after a text, if one was open before it."""
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
    """Where the code block begins that the end of the window lies in, if it begins there; else -1."""
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
    """How long the code block is that begins there, or what there is of it."""
    fence: Fence | None = None
    length = 0
    for line in text[begins:].split("\n"):
        fence = _fence_after_line(fence, line)
        length += len(line) + 1
        if fence is None:
            break
    return length
