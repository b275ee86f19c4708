"""The commands of `perdure`, as the tests of the READMEs look them up."""

from __future__ import annotations

from typing import Any, Final

import typer.main

from perdure.scenarios.cli import app

COMMANDS: Final = typer.main.get_command(app)


def command(*words: str) -> Any:
    """The command under these words."""
    found: Any = COMMANDS
    for word in words:
        found = found.get_command(None, word)
    return found


def options_of(known: Any) -> set[str]:
    """The options of a command."""
    return {option for each in known.params for option in each.opts}
