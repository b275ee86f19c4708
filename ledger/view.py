"""The view: what is true now, folded from the facts. `record` is the only way in: it numbers a fact, folds it, and hands back the row to
be made durable."""

from __future__ import annotations

from perdure.ledger.codec import encode
from perdure.ledger.facts import Fact
from perdure.ledger.folds import FOLDS
from perdure.ledger.ids import name_of
from perdure.ledger.standing import Standing
from perdure.ledger.store.store import FactRow


class View(Standing):
    """How things stand after all facts until now."""

    def record(self, fact: Fact, at_ms: int) -> FactRow:
        """Number the fact, fold it, and return its row."""
        self.seq += 1
        frame = self.fold(fact, self.seq, at_ms)
        kind, body = encode(fact)
        return FactRow(self.seq, at_ms, subject_of(fact), frame, kind, body)

    def fold(self, fact: Fact, seq: int, at_ms: int) -> int | None:
        """Change the records by one fact. Returns its number in its run's event stream, if it is an event."""
        self.seq, self.at_ms = max(self.seq, seq), max(self.at_ms, at_ms)
        special = FOLDS.get(type(fact))
        if special is not None:
            return special(self, fact, seq, at_ms)
        return self.advance(self.runs[fact[0]], fact, seq, at_ms)  # type: ignore[index]


def subject_of(fact: Fact) -> str:
    """The run, agent or mail that a fact is about."""
    first = fact[0]
    return first if isinstance(first, str) else ""


def last_end(view: View, agent: str) -> int:
    """The fact after which no life of this agent has ended.

    The child of a run also lived in its attempts, which are not written down one by one: of these only the first one's beginning is sure.
    """
    end = view.lives.last_end(agent)
    run = view.runs.get(name_of(agent))
    if run is None or run.child != agent or not run.attempt or (run.attempt == 1 and run.is_placed):
        return end
    return max(end, run.last_seq)
