"""`perdure swarm`, `replay`, `explore` and `bench`: what proves, and what measures."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, fields
from typing import Annotated

import typer

from ledger import BadRequest
from scenarios.commands_run import AsJson
from scenarios.stories import STORIES
from scenarios.swarm import SeedReport, SwarmReport, play, swarm

Story = Annotated[str | None, typer.Option(help="One story for every seed; by default the seed draws it.")]


def add_to(root: typer.Typer) -> None:
    """Add these commands."""
    root.command("swarm")(swarm_command)
    root.command("replay")(replay)


def swarm_command(
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds to play.")] = 100,
    first_seed: Annotated[int, typer.Option(help="The first of them.")] = 0,
    story: Story = None,
    processes: Annotated[int | None, typer.Option(min=1, help="How many at once; by default one for each processor.")] = None,
    as_json: AsJson = False,
) -> None:
    """Play many small simulated worlds, each with faults drawn from its seed, and check the invariants all the way.

    A seed that fails prints the line that replays it, and the exit code is 1.

    Example: perdure swarm --seeds 500 --first-seed 1000
    """
    known(story)
    count = processes or os.cpu_count() or 1
    report = swarm(seeds, first_seed, story=story, processes=count, on_progress=None if as_json else _progress)
    if as_json:
        told = {each.name: getattr(report, each.name) for each in fields(report)}
        told["failures"] = [{**asdict(each), "replay": each.replay} for each in report.failures]
        print(json.dumps({**told, "kills_per_second": _rate(report), "ok": report.ok}))
    else:
        print(f"{report.seeds} seeds, {report.kills} kills ({_rate(report):.0f} a second), {len(report.failures)} failures.")
    if not report.ok:
        raise typer.Exit(1)


def replay(seed: Annotated[int, typer.Argument(help="The seed.")], story: Story = None, as_json: AsJson = False) -> None:
    """Play one seed of the swarm again, exactly as it was.

    Example: perdure replay 42
    """
    known(story)
    report = play(seed, story)
    if as_json:
        print(json.dumps({**asdict(report), "ok": report.ok}))
    else:
        print(f"seed {seed}, story {report.story}: {report.kills} kills at {report.visits} places, digest {report.digest}")
        print(report.trace or "Everything held.")
    if not report.ok:
        raise typer.Exit(1)


def known(story: str | None) -> None:
    """Refuse a story that is none."""
    if story is not None and story not in STORIES:
        raise BadRequest("story", f"{story!r} is not one of {', '.join(sorted(STORIES))}")


def _rate(report: SwarmReport) -> float:
    return round(report.kills / report.seconds, 1) if report.seconds else 0.0


def _progress(last: SeedReport, total: SwarmReport) -> None:
    if not last.ok:
        print(f"seed {last.seed} failed: {last.problem}\n  {last.replay}", file=sys.stderr)
    elif total.seeds % 50 == 0:
        print(f"{total.seeds} seeds, {total.kills} kills, {len(total.failures)} failures", flush=True)
