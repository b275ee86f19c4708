"""A crowd of runs amid deaths: it ends as its members would one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from perdure.actors import KillPoint
from perdure.ledger import Payload, Row, Status
from perdure.ledger.store.crowds import CROWDS
from perdure.scenarios.testing.checks import Ledger
from tests.actors.cast import Doubler, Number
from tests.kit import Stage, play

COUNT = 60


@pytest.mark.parametrize("point", [KillPoint.BEFORE_COMMIT, KillPoint.AFTER_COMMIT, KillPoint.BEFORE_EFFECT])
@pytest.mark.parametrize("nth", [2, 3, 4, 5])
def test_a_crowd_outlives_the_supervisor_wherever_it_dies(
    point: KillPoint, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each commit the view is compared with the fold of the facts one by one (`Laboratory.look`)."""
    written: set[str] = set()
    visits = 0

    def watched(ledger: Ledger, rows: Sequence[Row], payloads: list[Payload]) -> None:
        written.update(row.kind for row in rows)
        append(ledger, rows, payloads)

    append = Ledger.append
    monkeypatch.setattr(Ledger, "append", watched)

    def dies(_stage: Stage, process: str, where: KillPoint, _detail: str) -> bool:
        nonlocal visits
        visits += process == "supervisor" and where is point
        return visits == nth and process == "supervisor" and where is point

    async def story(stage: Stage) -> None:
        numbers = [Number(n=number) for number in range(COUNT)]
        results = await asyncio.gather(*(stage.client.run(Doubler, each) for each in numbers))
        assert [result.output for result in results] == [2 * number for number in range(COUNT)]
        assert {run.status for run in stage.view.runs.values()} == {Status.COMPLETED}

    play(story, kill_when=dies)
    assert written >= set(CROWDS), "nothing was decided as a crowd"
