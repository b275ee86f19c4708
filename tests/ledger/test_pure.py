"""Deciding changes nothing: whatever happens in a swarm, the view is the same before and after each decision."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.actors.supervisor import supervisor
from perdure.ledger import Fact, HostView, Row, View
from perdure.scenarios.swarm.runner import play
from tests.kit import NOW_MS, Change, Ledger, asked, enacted, some


@pytest.mark.parametrize("seed", some(0, [3, 5]))
def test_no_decision_of_a_swarm_changes_the_view(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    decided = 0

    def watched(view: View, changes: Iterator[Change], at_ms: int) -> list[Row]:
        nonlocal decided
        rows = [row for _fact, row in enacted(view, changes, at_ms)]
        decided += len(rows)
        return rows

    expected = play(seed).digest
    monkeypatch.setattr(supervisor, "apply_fact", watched)
    assert play(seed).digest == expected
    assert decided


def test_a_decision_that_changes_the_view_is_found() -> None:
    ledger = Ledger().given(asked())

    def impure(view: View) -> Iterator[Fact]:
        view.hosts["h1"] = HostView("h1", None)
        yield asked("s")

    with pytest.raises(AssertionError, match="the view was changed"):
        list(enacted(ledger.view, impure(ledger.view), NOW_MS))
