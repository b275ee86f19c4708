"""The `perdure` command."""

from __future__ import annotations

import sys
from typing import Final

import typer

from ledger import PerdureError
from scenarios import commands_chat, commands_data, commands_proof, commands_run
from scenarios.commands_data import REFUSED

STOPPED: Final = 130  # what shells expect of a command that was interrupted

app = typer.Typer(
    name="perdure",
    help="Perdure: durable AI agents on Ray. Whatever dies, every run reaches an end.\n\nBegin with `perdure run fan-out`.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(commands_run.app, name="run")
for module in (commands_run, commands_chat, commands_proof, commands_data):
    module.add_to(app)


def main() -> None:
    """Run a command; what is wrong is said in one paragraph, without a traceback."""
    try:
        app()
    except PerdureError as problem:
        print(f"perdure: {problem}", file=sys.stderr)
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        sys.exit(STOPPED)


if __name__ == "__main__":
    main()
