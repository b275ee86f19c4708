"""The `perdure` command."""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from ledger import PerdureError
from scenarios import commands_chat, commands_data, commands_proof, commands_run
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


app = typer.Typer(
    name="perdure",
    help="Perdure: durable AI agents on Ray. Whatever dies, every run reaches an end.\n\nBegin with `perdure run fan-out`.",
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


for module in (commands_run, commands_chat, commands_proof, commands_data):
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
