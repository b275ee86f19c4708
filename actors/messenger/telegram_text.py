"""Turns an answer into plain text with Telegram's entities: code blocks, inline code, and bold.

Telegram's markup languages are not used, so nothing that a model writes can break a message or be taken for a link. Marks that do not pair
stay as they are. Places are counted in UTF-16 units, as Telegram does.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from perdure.policies import Counting, length_of

ENTITIES_MAX: Final = 100  # Telegram's own limit for one message
_BLOCK: Final = re.compile(
    r"^ {0,3}(`{3,}|~{3,})([^`\n]*)\n(.*?)(?:^ {0,3}\1[ \t]*(?:\n|\Z)|\Z)", re.DOTALL | re.MULTILINE
)
_INLINE: Final = re.compile(r"`([^`\n]+)`|\*\*(?=\S)([^*\n]+?)(?<=\S)\*\*")
_LANGUAGE: Final = re.compile(r"[A-Za-z0-9_+#.-]{1,32}")


class Span(NamedTuple):
    """An entity. `kind` is Telegram's name for it."""

    kind: str
    offset: int
    length: int
    language: str | None = None


def rendered(text: str) -> tuple[str, list[Span]]:
    """The text without its marks, and its entities."""
    shown: list[str] = []
    spans: list[Span] = []
    at = 0
    for block in _BLOCK.finditer(text):
        _add_lines(text[at : block.start()], shown, spans)
        body = block[3].removesuffix("\n")
        if body.strip():
            named = _LANGUAGE.fullmatch(block[2].strip())
            _add(body, shown, spans, "pre", named[0] if named else None)
            shown.append("\n" if block[0].endswith("\n") else "")
        else:
            shown.append(block[0])
        at = block.end()
    _add_lines(text[at:], shown, spans)
    whole = "".join(shown)
    return (whole, spans[:ENTITIES_MAX]) if whole.strip() else (text, [])


def _add_lines(text: str, shown: list[str], spans: list[Span]) -> None:
    at = 0
    for found in _INLINE.finditer(text):
        shown.append(text[at : found.start()])
        _add(found[1] or found[2], shown, spans, "code" if found[1] else "bold", None)
        at = found.end()
    shown.append(text[at:])


def _add(body: str, shown: list[str], spans: list[Span], kind: str, language: str | None) -> None:
    before = sum(length_of(each, Counting.UTF16) for each in shown)
    spans.append(Span(kind, before, length_of(body, Counting.UTF16), language))
    shown.append(body)
