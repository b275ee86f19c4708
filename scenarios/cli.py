"""The `perdure` command.

Each of its commands is imported when it is used: some need Ray, DuckDB or a library of models, and help, and the others, must not wait for
these imports.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from inspect import cleandoc
from typing import Annotated, Any, ClassVar, Final, NamedTuple, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from perdure import BadRequest, PerdureError
from perdure.ledger import harmless
from perdure.scenarios.commands.catalog import CATALOG
from perdure.scenarios.exits import DIFFERS, REFUSED, UNREAD, code_of, heed_sigterm, stop_of


def say_version(asked: bool) -> None:
    if asked:
        try:
            print(f"perdure {version('perdure')}")
        except PackageNotFoundError:
            print("perdure, from a directory that is not installed")
        raise typer.Exit


HELP: Final = """Perdure: durable AI agents on Ray. Whichever process dies, every run ends, and every completion takes effect once.

\b
Begin:    perdure run fan-out
Serve:    serve                              agents over HTTP
          mcp                                agents as tools, over stdio
Play:     run, list                          scenarios, with kills
Look:     ps, show, explain, audit, doctor   a directory, served or cold
          logs, inspect                      what agents printed, and keep
          fibers, schedules, turns           what they do beside runs
Steer:    cancel, retry, clear, stop         its runs, mail and processes
          send, pause, resume                runs that wait
          asks, answer                       what runs ask people
          unschedule                         what agents do later
Keep:     backup, restore, replica           copies of it
Break:    kill, chaos                        its processes
Prove:    swarm, replay, explore             simulated worlds
Measure:  bench

`perdure COMMAND --help` has examples.

All that is durable lies in a data directory: ./perdure-data, or --data DIR. If a supervisor serves it, commands talk to that. If
none does, they open the ledger for a moment, and what they decide is done when the directory is served again.

Durations are written 30s, 90m, 12h or 7d. Names that end in _ms are milliseconds; those in _at_ms are milliseconds since 1970. --json
prints an infinite limit as null. Times are UTC.

Exit codes: 0 success; 1 something differs or is damaged; 2 refused, and nothing was done; 130 stopped by Ctrl-C; 143 by SIGTERM;
141 nobody reads what is printed any more (`| head`).
"""


class Command(TyperCommand):
    """A command that refuses a text that is no UTF-8, by the name of its argument: no ledger has one, nor can it be searched for one."""

    def invoke(self, ctx: Any) -> Any:
        for name, given in ctx.params.items():
            for text in given if isinstance(given, list | tuple) else [given]:
                if isinstance(text, str) and not _is_utf8(text):
                    raise BadRequest(name, f"{text!r:.200} is no UTF-8")
        return super().invoke(ctx)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Entry(NamedTuple):
    """A command before it is taken: where its function is, as `module:name`, and one sentence for the list of its group."""

    place: str
    sentence: str

    def taken(self, name: str) -> Any:
        module, _, function = self.place.partition(":")
        command = getattr(import_module(f"perdure.scenarios.{module}"), function)
        words = cleandoc(command.__doc__).replace("\n\nExample", "\n\n\b\nExample")  # one example a line
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(name, cls=Command, help=words)(command)
        return typer.main.get_command(alone)


class LazyGroup(TyperGroup):
    """A group whose commands stand in a table. Those that were added in another way come first."""

    entries: ClassVar[Mapping[str, Entry]]
    commands: dict[str, Any]

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands |= self.entries

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found = self.commands.get(cmd_name)
        if isinstance(found, Entry):
            found = self.commands[cmd_name] = found.taken(cmd_name)
        return found

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                (name, each.sentence if isinstance(each, Entry) else each.get_short_help_str())
                for name, each in self.commands.items()
            )


class Scenarios(LazyGroup):
    entries: ClassVar = {each.name: Entry(each.command, each.sentence) for each in CATALOG}


class Commands(LazyGroup):
    """All other commands."""

    entries: ClassVar = {
        "list": Entry("commands.catalog:list_scenarios", "Name the scenarios that `run` can play."),
        "serve": Entry("commands.serve:serve", "Serve agents over HTTP, with what runs them."),
        "mcp": Entry("commands.serve:mcp", "Offer agents as tools to an MCP client over stdio."),
        "ps": Entry("commands.overview:ps", "Show live runs, mail and hosts, or list runs."),
        "show": Entry("commands.data:show", "Show everything about a run, or about the directory."),
        "explain": Entry("commands.data:explain", "Say where a run is and why, and what comes next."),
        "inspect": Entry("commands.background:inspect", "Show an agent's state, tables and work."),
        "fibers": Entry("commands.background:fibers", "List fibers of all agents, or failed ones."),
        "schedules": Entry("commands.background:schedules", "List schedules and queued items."),
        "unschedule": Entry("commands.background:unschedule", "Cancel a schedule or a queued item of an agent."),
        "turns": Entry("commands.background:turns", "List the turns of chat agents."),
        "logs": Entry("commands.data:logs", "Show what agents printed and logged, by run."),
        "asks": Entry("commands.waiting:asks", "List the questions that runs ask people."),
        "answer": Entry("commands.waiting:answer", "Answer a question of a run."),
        "cancel": Entry("commands.steer:cancel", "Cancel a run, or many, and what waits below."),
        "send": Entry("commands.waiting:send", "Send an event to a run that waits for it."),
        "pause": Entry("commands.waiting:pause", "Pause a run."),
        "resume": Entry("commands.waiting:resume", "Let a paused run go on."),
        "retry": Entry("commands.steer:retry", "Try failed runs or a parked mail again."),
        "upgrade": Entry("commands.upgrade:upgrade", "Show which code stands where, and move agents on."),
        "kill": Entry("commands.ending:kill", "Kill a process that serves a directory."),
        "clear": Entry("commands.steer:clear", "Forget runs and their children's storage."),
        "forget": Entry("commands.steer:forget", "Delete an agent and all that is its own."),
        "stop": Entry("commands.ending:stop", "Stop the supervisor and the hosts of a directory."),
        "audit": Entry("commands.data:audit", "Account for all mail."),
        "doctor": Entry("commands.keep:doctor", "Verify the ledger and the storages, or repair the ledger."),
        "backup": Entry("commands.keep:backup", "Back a directory up, served or cold."),
        "restore": Entry("commands.keep:restore", "Bring a directory back from a backup."),
        "replica": Entry("commands.keep:replica", "Follow a directory into a bucket."),
        "chaos": Entry("commands.ending:chaos", "Kill processes for a while, and account for the work."),
        "swarm": Entry("swarm.commands:swarm_command", "Play many simulated worlds with faults."),
        "replay": Entry("swarm.commands:replay", "Play one seed of the swarm again."),
        "explore": Entry("swarm.commands:explore_command", "Play one story, with a kill at every place."),
        "soak": Entry("stories.soak:soak", "Play stories for hours, and look whether anything grows."),
        "bench": Entry("bench.command:bench", "Measure throughput, latency and recovery."),
    }

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:  # of which typer would make 130, whatever it is
            raise typer.Exit(code_of(stop)) from None


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
        bool, typer.Option("--version", help="Print the version.", callback=say_version, is_eager=True)
    ] = False,
) -> None:
    """Stand before every command."""


FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NOT_ALLOWED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


def main() -> None:
    have_streams()
    heed_sigterm()
    output = sys.stdout, sys.stderr
    try:
        _play(output)
    finally:
        bring_out(*output)


def _play(output: tuple[TextIO, TextIO]) -> None:
    try:
        app(prog_name="perdure")  # also as `python -m perdure`
    except PerdureError as problem:
        print(f"perdure: {harmless(str(problem))}", file=sys.stderr)
        sys.exit(REFUSED)
    except KeyboardInterrupt as stop:
        sys.exit(code_of(stop))
    except RuntimeError as problem:
        meant = stop_of(problem)
        if meant is None:
            raise
        sys.exit(code_of(meant))
    except OSError as problem:
        bring_out(*output)  # which exits if it is the output that cannot be written
        if problem.errno not in (*FULL, *NOT_ALLOWED, errno.EBADF):
            raise
        place = problem.filename or "what is printed, or a file that is written"
        advice = "free some space" if problem.errno in FULL else "check its path, owner and permissions"
        print(f"perdure: {place}: {problem.strerror} — {advice}", file=sys.stderr)
        sys.exit(REFUSED if problem.filename else DIFFERS)


def have_streams() -> None:
    """See that there is an input, which may have been closed (`<&-`), and an output, which says also what its encoding lacks. Where the
    output was closed (`>&-`) there is one that cannot be written."""
    sys.stdin = sys.stdin or open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115 - for the life of the process
    sys.stdout = sys.stdout or open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")  # noqa: PTH123, SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def bring_out(*output: TextIO) -> None:
    """Write what was printed. Exits if that cannot be done, quietly if nobody reads it any more (`| head`)."""
    code, words = 0, ""
    if sys.stdout is not output[0]:  # typer has put another in its place, because nobody read it
        code = UNREAD
    for stream in output:
        try:
            stream.flush()
        except OSError as problem:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # Python tries it again at its end
            code = UNREAD if isinstance(problem, BrokenPipeError) else DIFFERS
            words = f"perdure: what is printed: {problem.strerror} — free some space, or let it go elsewhere"
    if code == DIFFERS:
        print(words, file=sys.stderr)
    if code:
        sys.exit(code)


if __name__ == "__main__":
    main()
