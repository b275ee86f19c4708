"""The `perdure` command."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Final

import typer

from ledger import PerdureError
from scenarios import commands_chat, commands_data, commands_jobs, commands_messenger, commands_proof, commands_run
from scenarios.commands_data import REFUSED
from scenarios.commands_run import code_of


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
Steer:    cancel, retry, clear               its runs and its parked mail
Prove:    swarm, replay, explore             simulated worlds
Measure:  bench

`perdure COMMAND --help` has examples.

A data directory is where everything durable lies: --data DIR, by default ./perdure-data. If a supervisor serves it, that is asked, or
told; if none does, its ledger is opened for a moment, and what is decided there is done when it is served again.

Durations are given as 30s, 90m, 12h or 7d. Names that end in _ms are milliseconds, in _at_ms milliseconds since 1970; --json prints
them as they are, and an infinite limit as null. Times are UTC.

Exit codes: 0 well; 1 something differs or is damaged; 2 refused, and nothing was done; 130 stopped by Ctrl-C; 143 by SIGTERM.
"""

app = typer.Typer(
    name="perdure",
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(commands_run.app, name="run")


@app.callback()
def _perdure(
    _version: Annotated[
        bool, typer.Option("--version", help="Say which Perdure this is.", callback=say_version, is_eager=True)
    ] = False,
) -> None:
    """Stand before every command."""


for module in (commands_run, commands_chat, commands_jobs, commands_messenger, commands_proof, commands_data):
    module.add_to(app)


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
