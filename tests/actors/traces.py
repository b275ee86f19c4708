"""Telemetry that remembers what it was told, and how tests look at it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from perdure.actors import Telemetry
from perdure.policies import EndedSpan


class Recorder(Telemetry):
    """Lies outside of every simulated process, as a collector does."""

    is_on = True

    def __init__(self, *, tells_content: bool = False) -> None:
        self.tells_content = tells_content
        self.spans: list[EndedSpan] = []

    def tell(self, span: EndedSpan) -> None:
        """Remember it. What is told again must be the same."""
        again = [known for known in self.spans if known.context.span_id == span.context.span_id]
        assert again in ([], [span]), (again, span)
        if not again:
            self.spans.append(span)

    def named(self, name: str) -> list[EndedSpan]:
        """The spans of this name, in the order of their beginnings."""
        return sorted((span for span in self.spans if span.name == name), key=lambda span: span.start_ms)

    def one(self, name: str) -> EndedSpan:
        """The one span of this name."""
        (span,) = self.named(name)
        return span


def tree(spans: Iterable[EndedSpan]) -> list[Any]:
    """The spans as nested pairs of a name and what is below it, in the order of their beginnings. No span may hang in the air."""
    known = sorted(spans, key=lambda span: (span.start_ms, span.end_ms))
    ids = {span.context.span_id for span in known} | {""}
    loose = [span for span in known if span.parent not in ids]
    assert not loose, loose

    def below(parent: str) -> list[Any]:
        found = [span for span in known if span.parent == parent]
        return [(span.name, nested) if (nested := below(span.context.span_id)) else span.name for span in found]

    return below("")
