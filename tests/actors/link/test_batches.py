"""A batch of runs amid deaths: it ends as its members would one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from perdure.actors import KillPoint
from perdure.actors.link.messages import Starts
from perdure.actors.link.wire import messages_in
from perdure.ledger import Request, Row, StartBatch, Status, agent_id, outstanding
from perdure.ledger.store.batches import BATCHES
from perdure.scenarios.bench.growth import CHILD, TurnBench, requests
from perdure.scenarios.bench.ledger import AT_MS
from perdure.scenarios.testing.checks import Ledger
from tests.actors.cast import Doubler, Number
from tests.kit import Death, Stage, play

COUNT = 120


@pytest.mark.parametrize("point", [KillPoint.BEFORE_COMMIT, KillPoint.AFTER_COMMIT, KillPoint.BEFORE_EFFECT])
@pytest.mark.parametrize("nth", [2, 3, 4, 5])
def test_a_batch_outlives_the_supervisor_wherever_it_dies(
    point: KillPoint, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each commit the view is compared with the fold of the facts one by one (`Laboratory.look`)."""
    written: set[str] = set()

    def watched(ledger: Ledger, rows: Sequence[Row], *others: Any) -> None:
        written.update(row.kind for row in rows)
        append(ledger, rows, *others)

    append = Ledger.append
    monkeypatch.setattr(Ledger, "append", watched)

    async def story(stage: Stage) -> None:
        numbers = [Number(n=number) for number in range(COUNT)]
        results = await asyncio.gather(*(stage.client.run(Doubler, each) for each in numbers))
        assert [result.output for result in results] == [2 * number for number in range(COUNT)]
        assert {run.status for run in stage.view.runs.values()} == {Status.COMPLETED}

    play(story, kill_when=Death(point, who="supervisor", visit=nth))
    assert written >= set(BATCHES), "nothing was decided as a batch"


async def test_a_batch_is_started_once_in_a_session() -> None:
    """A host that has let a life go must not begin it again. With a new session comes a hello, and all are told anew."""
    turns = TurnBench()
    options = {"detached": True}  # of a batch they are one object
    await turns.turn([each._replace(options=options) for each in cast("list[Request]", requests(6))])
    again = [each for each in outstanding(turns.view, list(turns.view.runs), AT_MS) if isinstance(each, StartBatch)]
    assert [len(each.run_ids) for each in again] == [6]
    turns.view.agents[agent_id(CHILD, again[0].run_ids[2])].begun_in = 0
    await turns.effect_executor.perform([*again], AT_MS)
    _, said = turns.session.link.take()
    assert [each.run_ids for each in messages_in(said) if isinstance(each, Starts)] == [again[0].run_ids[2:3]]
    turns.session.link.session += 1
    await turns.effect_executor.perform([*again], AT_MS)
    _, said = turns.session.link.take()
    assert [each.run_ids for each in messages_in(said) if isinstance(each, Starts)] == [again[0].run_ids]
