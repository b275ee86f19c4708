"""Which runs have changed since a fact: the same for batches as for runs one by one."""

from __future__ import annotations

from perdure.actors.supervisor.queries import Changes
from perdure.ledger import Clear, expand_rows
from tests.ledger.test_batches import fan_out


def test_a_batch_changes_its_runs_as_they_would_one_by_one() -> None:
    both = fan_out()
    together, alone = Changes(both.view), Changes(both.view)
    for each in (together, alone):
        each._begin = each._upto = 0  # noqa: SLF001 - they have seen everything
    together.note(both.rows)
    alone.note(expand_rows(both.rows))
    for after in (0, 5, 20, 30, both.view.seq):
        for most in (3, 100):
            assert together.since(after, most) == alone.since(after, most)
    told = together.since(0, 100)
    assert [run["run_id"] for run in told["runs"]][-1] == "r16", "the last one that ended"
    assert len(told["runs"]) == 20


def test_a_run_of_a_batch_that_was_cleared_is_gone() -> None:
    both = fan_out()
    changes = Changes(both.view)
    seen = len(both.rows)
    both.say([Clear(["r03"])])
    changes.note(both.rows[seen:])
    assert changes.since(both.view.seq - 1, 9)["gone"] == ["r03"]
