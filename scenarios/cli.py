"""The `perdure` command. Each of its commands is imported when it is used (see `shelf`)."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, ClassVar, Final

import typer

from perdure.ledger import PerdureError
from perdure.scenarios.commands.catalog import CATALOG
from perdure.scenarios.commands.shelf import Entry, LazyGroup
from perdure.scenarios.exits import REFUSED, code_of


def say_version(asked: bool) -> None:
    """Print the version, and nothing else."""
    if asked:
        try:
            print(f"perdure {version('perdure')}")
        except PackageNotFoundError:
            print("perdure, from a directory that is not installed")
        raise typer.Exit


HELP: Final = """Perdure: durable AI agents on Ray. Whatever dies, every run reaches an end, and every completion takes effect once.

\b
Begin:    perdure run fan-out
Play:     run, list                          scenarios, with kills
Look:     ps, show, explain, audit, doctor   a data directory, served or cold
Steer:    cancel, retry, clear, stop         its runs and mail, what serves it
Prove:    swarm, replay, explore             simulated worlds
Measure:  bench

`perdure COMMAND --help` has examples.

A data directory is where everything durable lies: --data DIR, by default ./perdure-data. If a supervisor serves it, that is asked, or
told; if none does, its ledger is opened for a moment, and what is decided there is done when it is served again.

Durations are given as 30s, 90m, 12h or 7d. Names that end in _ms are milliseconds, in _at_ms milliseconds since 1970; --json prints
them as they are, and an infinite limit as null. Times are UTC.

Exit codes: 0 well; 1 something differs or is damaged; 2 refused, and nothing was done; 130 stopped by Ctrl-C; 143 by SIGTERM.
"""


class Scenarios(LazyGroup):
    """What `perdure run` can play; what it says of each is what `perdure list` says."""

    entries: ClassVar = {each.name: Entry(each.command, each.sentence) for each in CATALOG}


class Commands(LazyGroup):
    """All others."""

    entries: ClassVar = {
        "list": Entry("perdure.scenarios.commands.list:list_scenarios", "Name the scenarios that `run` can play."),
        "ps": Entry("perdure.scenarios.commands.data:ps", "Show what is going on, or list runs."),
        "show": Entry("perdure.scenarios.commands.data:show", "Show everything about a run, or about the directory."),
        "explain": Entry("perdure.scenarios.commands.data:explain", "Say where a run is and why, and what comes next."),
        "cancel": Entry("perdure.scenarios.commands.data:cancel", "Cancel a run and what its child waits for."),
        "retry": Entry("perdure.scenarios.commands.data:retry", "Try a parked mail again."),
        "clear": Entry("perdure.scenarios.commands.data:clear", "Forget runs and their children's storage."),
        "stop": Entry("perdure.scenarios.commands.stop:stop", "Stop what serves the directory."),
        "audit": Entry("perdure.scenarios.commands.data:audit", "Account for every completion."),
        "doctor": Entry("perdure.scenarios.commands.data:doctor", "Verify a directory that nobody serves, or mend it."),
        "swarm": Entry("perdure.scenarios.commands.proof:swarm_command", "Play many simulated worlds with faults."),
        "replay": Entry("perdure.scenarios.commands.proof:replay", "Play one seed of the swarm again."),
        "explore": Entry("perdure.scenarios.commands.proof:explore_command", "Play one story, killed at every place."),
        "bench": Entry("perdure.scenarios.commands.proof:bench", "Measure throughput, latency and recovery."),
    }


app = typer.Typer(
    name="perdure",
    cls=Commands,
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(
    typer.Typer(cls=Scenarios, rich_markup_mode=None),
    name="run",
    no_args_is_help=True,
    help="Play a scenario; `perdure list` names them all.",
    short_help="Play a scenario.",
)


@app.callback()
def _perdure(
    _version: Annotated[
        bool, typer.Option("--version", help="Say which Perdure this is.", callback=say_version, is_eager=True)
    ] = False,
) -> None:
    """Stand before every command."""


def main() -> None:
    """Run a command; what is wrong is said in one paragraph, without a traceback."""
    try:
        app()
    except PerdureError as problem:
        print(f"perdure: {problem}", file=sys.stderr)
        sys.exit(REFUSED)
    except KeyboardInterrupt as stop:
        sys.exit(code_of(stop))


if __name__ == "__main__":
    main()
