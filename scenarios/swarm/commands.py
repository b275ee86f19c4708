"""`perdure swarm`, `replay` and `explore`."""

from __future__ import annotations

import json
import os
import sys
from contextlib import ExitStack
from dataclasses import asdict
from random import Random
from typing import Annotated

import typer

from perdure import Client
from perdure.scenarios.commands.options import AsJson
from perdure.scenarios.commands.shown import rate
from perdure.scenarios.exits import code_of, heed_sigterm
from perdure.scenarios.swarm.explorer import explore
from perdure.scenarios.swarm.play_context import PlayContext
from perdure.scenarios.swarm.runner import SeedReport, SwarmReport, around_story, check_story, play, swarm
from perdure.scenarios.swarm.stories import STORIES, play_parts
from perdure.scenarios.testing.laboratory import Violation

Carried = Annotated[
    bool,
    typer.Option(
        "--carried",
        help="The ledger and the storages are in a bucket with weather of its own, and machines die with their disks.",
    ),
]
Story = Annotated[str | None, typer.Option(help="One story for every seed; by default the seed draws one.")]


def swarm_command(
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 100,
    first_seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    story: Story = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Number of processes; by default one for each core.")
    ] = None,
    carried: Carried = False,
    as_json: AsJson = False,
) -> None:
    """Play many small simulated worlds, each with faults drawn from its seed, and check the invariants throughout.

    No Ray is started, and time is virtual. A seed that fails prints the line that replays it, and the exit code is 1. A swarm that is
    stopped tells what it found so far, and how to go on.

    Examples:
        perdure swarm
        perdure swarm --seeds 500 --first-seed 1000 --processes 2
        perdure swarm --story budgets --json
    """
    check_story(story)
    heed_sigterm()
    count = processes or os.cpu_count() or 1
    report, stopped = SwarmReport(), None
    try:
        swarm(
            seeds, first_seed, story=story, processes=count, carried=carried,
            on_progress=None if as_json else _progress, total=report,
        )  # fmt: skip
    except KeyboardInterrupt as stop:
        stopped = stop
    next_seed, kills_per_second = first_seed + report.seeds, rate(report.kills, report.seconds)
    if as_json:
        told = {
            **vars(report),
            "kills_per_second": kills_per_second,
            "ok": report.ok,
            "next_seed": next_seed,
        }
        told["failures"] = [{**asdict(each), "replay": each.replay} for each in report.failures]
        print(json.dumps(told))
    else:
        print(
            f"{report.seeds} seeds, {report.kills} kills ({kills_per_second:.0f} a second), {len(report.failures)} failures."
        )
    if stopped is not None:
        options = f" --story {story}" * (story is not None) + f" --processes {processes}" * (processes is not None)
        options += " --carried" * carried
        left = f"perdure swarm --first-seed {next_seed} --seeds {seeds - report.seeds}{options}"
        print(f"Stopped before seed {next_seed}. This plays the others: {left}", file=sys.stderr)
        raise typer.Exit(code_of(stopped))
    if not report.ok:
        raise typer.Exit(1)


def replay(
    seed: Annotated[int, typer.Argument(help="The seed.")],
    story: Story = None,
    carried: Carried = False,
    as_json: AsJson = False,
) -> None:
    """Play one seed of the swarm again, exactly as it was, and print what went wrong. The exit code is 1 if anything did.

    Examples:
        perdure replay 42
        perdure replay 42 --story trees
    """
    check_story(story)
    report = play(seed, story, carried=carried)
    if as_json:
        print(json.dumps({**asdict(report), "ok": report.ok}))
    else:
        print(
            f"seed {seed}, story {report.story}: {report.kills} kills at {report.visits} places, digest {report.digest}"
        )
        print(report.trace or "Everything held.")
    if not report.ok:
        raise typer.Exit(1)


def explore_command(
    story: Annotated[str, typer.Option(help="The story that is played once for every place to die.")] = "trees",
    seed: Annotated[int, typer.Option(help="Decides everything else.")] = 0,
    stride: Annotated[int, typer.Option(min=1, help="Try only every n-th place.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Play one simulated story again and again, with a kill at every durable write and every effect, one after the other.

    A calm run first counts every place to die. Then the story is played once for each. The exit code is 1 if one of them failed.

    Examples:
        perdure explore
        perdure explore --story budgets --stride 5
    """
    check_story(story)

    async def play_once(client: Client) -> None:
        around.close()  # the last play's; this one begins anew
        wrong = around.enter_context(around_story(story))
        complaints: list[str] = []
        await play_parts(STORIES[story], PlayContext(client, Random(seed), patient=True, complaints=complaints), seed)
        complaints += wrong()
        if complaints:
            raise Violation("; ".join(complaints))

    with ExitStack() as around:
        report = explore(play_once, seed=seed, stride=stride, diaries=True, parked=True)
    failures = [{key: value for key, value in asdict(death).items() if key != "trace"} for death in report.failures]
    if as_json:
        print(json.dumps({**vars(report), "failures": failures, "ok": report.ok}))
    else:
        print(f"{report.kills} places to die were tried in {report.seconds:.1f} s, {len(failures)} failures.")
        for death in report.failures:
            print(f"{death.victim} at {death.point} (visit {death.visit}): {death.problem}", file=sys.stderr)
    if not report.ok:
        raise typer.Exit(1)


def _progress(last: SeedReport, total: SwarmReport) -> None:
    if not last.ok:
        print(f"seed {last.seed} failed: {last.problem}\n  {last.replay}", file=sys.stderr)
    elif total.seeds % 50 == 0:
        print(f"{total.seeds} seeds, {total.kills} kills, {len(total.failures)} failures", flush=True)
