"""A group of commands that imports the module of a command when the command is used.

Some commands need Ray, DuckDB or a library of models. Help, and the other commands, must not wait for these imports.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from inspect import cleandoc
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperGroup


class Entry(NamedTuple):
    """A command before it is taken: where its function is, as `module:name`, and one sentence for the list of its group."""

    place: str
    sentence: str

    def taken(self, name: str) -> Any:
        module, _, function = self.place.partition(":")
        command = getattr(import_module(module), function)
        words = cleandoc(command.__doc__).replace("\n\nExample", "\n\n\b\nExample")  # one example a line
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(name, help=words)(command)
        return typer.main.get_command(alone)


class Shelf(UserDict[str, Any]):
    """Commands by name, as entries or already taken."""

    def __getitem__(self, name: str) -> Any:
        found = self.data[name]
        if isinstance(found, Entry):
            found = self.data[name] = found.taken(name)
        return found


class LazyGroup(TyperGroup):
    """A group whose commands stand in a table. Those that were added in another way come first."""

    entries: ClassVar[Mapping[str, Entry]]

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self._sentences = {name: each.get_short_help_str() for name, each in self.commands.items()}
        self._sentences |= {name: entry.sentence for name, entry in self.entries.items()}
        self.commands = Shelf({**self.commands, **self.entries})

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self._sentences.items()))
