"""The explorer: one small story, killed at every single place where somebody can die."""

from __future__ import annotations

import pytest

from perdure.actors import Client, KillPoint
from perdure.ledger import OutcomeUnknown
from perdure.scenarios.cast.workers import Boss, BossJob, Task, Worker
from perdure.scenarios.swarm.explorer import Death, ExploreReport, die_at, explore, places
from perdure.scenarios.testing.laboratory import QUICK, Story

JOBS = [
    BossJob(run_id="plain", task=Task(steps=2, milestones=True), milestones=True),
    BossJob(run_id="large", task=Task(padding="p" * 900, output_bytes=900), handler="on_done_slowly"),
    BossJob(run_id="moody", task=Task(fault="raise"), handler="on_done_in_bad_temper"),
    BossJob(run_id="chain", task=Task(detached=[Task()]), handler="on_done_chained", follow_ups=1),
]
TREE = Task(weight=2, awaited=[Task(weight=3, steps=1), Task(weight=4, awaited=[Task(weight=5)])])


async def errands(client: Client) -> None:
    """Detached runs with handlers of every kind."""
    while True:
        try:
            await client.call(Boss, "boss", "begin", (JOBS,), {})
        except OutcomeUnknown:
            continue
        return


async def tree(client: Client) -> None:
    """Awaited runs, nested, whose sum must be right."""
    result = await client.run(Worker, TREE, run_id="tree")
    assert result.ok
    assert result.output.total == TREE.total()


async def both(client: Client) -> None:
    await errands(client)
    await tree(client)


@pytest.mark.thorough
@pytest.mark.parametrize(("story", "places_min"), [(errands, 100), (tree, 30)])
def test_a_death_at_every_single_kill_point_of_a_story_loses_nothing(story: Story, places_min: int) -> None:
    report = explore(story)
    assert report.ok, "\n".join(
        f"{death.visit} {death.victim} {death.point}: {death.problem}" for death in report.failures
    )
    assert report.kills > places_min
    victims = {place.partition(" ")[0] for place in report.points}
    assert victims == {"supervisor", "host"}


def test_only_the_victims_that_were_asked_for_die() -> None:
    report = explore(tree, kill="supervisor", stride=5)
    assert report.ok
    assert all(place.startswith("supervisor ") for place in report.points)


def test_a_story_visits_the_kill_points_of_its_links() -> None:
    points = {place.point for place in places(both, 0, QUICK, None)}
    assert {
        KillPoint.BEFORE_COMMIT,
        KillPoint.AFTER_EFFECT,
        KillPoint.MID_HANDLER,
        KillPoint.MID_STORAGE,
        KillPoint.BEFORE_REPORT,
    } <= points


def test_every_death_is_told_while_it_goes_on() -> None:
    heard: list[Death] = []

    def listen(death: Death, report: ExploreReport) -> None:
        assert report.kills == len(heard) + 1
        heard.append(death)

    explore(tree, kill="host", stride=6, on_progress=listen)
    assert heard


def test_a_place_to_die_can_be_tried_again_alone() -> None:
    place = places(tree, 0, QUICK, "host")[3]
    assert die_at(tree, place) == place


def test_a_story_whose_sum_goes_wrong_is_reported_with_its_place() -> None:
    async def wrong(client: Client) -> None:
        assert (await client.run(Worker, TREE, run_id="tree")).output.total == TREE.total()
        frames = await client.ask("frames", "tree", -1)
        assert not any(frame["event"]["kind"] == "attempt" for frame in frames), "it was tried twice"

    report = explore(wrong, kill="host", stride=3)
    assert any("tried twice" in death.problem for death in report.failures)
    assert report.failures[0].trace
