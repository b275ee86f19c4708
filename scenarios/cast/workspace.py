"""The workspace of the chat scenarios: a directory of text files, four real tools, and questions with known answers.

Each question lets the model read and search in parallel, then write a report, and (`with_shell`) run a command. The conclusion must state
the digest of every tool result. `plain_result` computes these results from the files without a tool.

The environment variable `PERDURE_WORKSPACE` names the workspace to the tools' processes. A tool with side effects logs each begin outside
of the files, so a call that was executed twice has two lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
from pathlib import Path
from random import Random
from typing import Any, Final, Self

from perdure import tool
from perdure.scenarios.provider.script import Round, ScriptedCall, ScriptedQuestion, key_of

PLACE: Final = "PERDURE_WORKSPACE"
SHELF: Final = "shelf"
REPORTS: Final = "reports"
OUTPUT_CHARS_MAX: Final = 100_000
STOCK: Final = (
    "anvil bellows chisel déjà forge gouge hammer iron jointer kiln lathe mallet naïve œuvre plane quench rasp spokeshave tongs Überzug "
    "vise whetstone → ∎"
)
WORDS: Final = tuple(STOCK.split())


class WorkspaceError(Exception):
    """A tool's failure, as a text for the model."""


class Workspace:
    """One workspace. Tools see `files`. The log of effects and the pace of the tools lie beside it."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        self.files = self.root / "files"
        self._effects = self.root / "effects.txt"
        self._pace = self.root / "pace.json"

    @classmethod
    def create(cls, root: Path, seed: int = 0, files: int = 12, lines: int = 40) -> Self:
        """Fill a new directory. The same seed gives the same files."""
        workspace = cls(root)
        die = Random(seed)
        (workspace.files / SHELF).mkdir(parents=True)
        (workspace.files / REPORTS).mkdir()
        for number in range(files):
            text = "".join(" ".join(die.choices(WORDS, k=die.randint(3, 9))) + "\n" for _ in range(lines))
            (workspace.files / SHELF / f"{number:03}.txt").write_text(text, "utf-8")
        return workspace

    @classmethod
    def here(cls) -> Self:
        """The workspace that the environment names. Raises `WorkspaceError` if it names none."""
        place = os.environ.get(PLACE)
        if not place:
            raise WorkspaceError(f"there is no workspace: {PLACE} is not set in the environment of this process")
        return cls(Path(place))

    @property
    def environment(self) -> dict[str, str]:
        return {PLACE: str(self.root)}

    # what the tools do

    def path_of(self, name: str) -> Path:
        """A path below the files. Raises `WorkspaceError` for any other."""
        try:
            path = (self.files / name).resolve()
        except (ValueError, OSError) as problem:
            raise WorkspaceError(f"{name!r} is no path: {problem}") from problem
        if not path.is_relative_to(self.files) or path == self.files:
            raise WorkspaceError(f"{name!r} is outside of the workspace; paths look like {SHELF}/000.txt")
        return path

    def read(self, name: str) -> str:
        try:
            return self.path_of(name).read_text("utf-8")
        except OSError as problem:
            raise WorkspaceError(f"cannot read {name!r}: {problem.strerror}") from problem

    def search(self, pattern: str) -> str:
        """The lines on the shelf that match a regular expression, as `path:line: text`."""
        try:
            wanted = re.compile(pattern)
        except re.error as problem:
            raise WorkspaceError(f"{pattern!r} is no regular expression: {problem}") from problem
        found = [
            f"{SHELF}/{path.name}:{number}: {line}"
            for path in sorted((self.files / SHELF).iterdir())
            for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
            if wanted.search(line)
        ]
        return "\n".join([f"{len(found)} lines", *found])

    def write(self, name: str, text: str) -> str:
        path = self.path_of(name)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        except OSError as problem:
            raise WorkspaceError(f"cannot write {name!r}: {problem.strerror}") from problem
        return f"wrote {len(text)} characters to {name}"

    # effects and pace

    def note(self, name: str, arguments: dict[str, Any]) -> None:
        # One write, so no death can tear the line.
        with self._effects.open("ab", buffering=0) as log:
            log.write(f"{key_of(name, arguments)}\n".encode())

    def effects(self) -> list[str]:
        """The keys of all calls that have begun: each is the tool with its arguments."""
        return self._effects.read_text("utf-8").split("\n")[:-1] if self._effects.exists() else []

    def set_pace(self, **pauses_ms: float) -> None:
        """Set how long each tool takes after its begin: `set_pace(read_file=200)`."""
        self._pace.write_text(json.dumps(pauses_ms), "utf-8")

    async def work(self, name: str) -> None:
        paces = json.loads(self._pace.read_bytes()) if self._pace.exists() else {}
        if pause_ms := paces.get(name):
            await asyncio.sleep(pause_ms / 1000)

    # questions

    def question(self, number: int, *, with_shell: bool = False) -> ScriptedQuestion:
        # The same files and number give the same calls. No two questions share an effect.
        die = Random(number)
        first, second = die.sample([f"{SHELF}/{path.name}" for path in sorted((self.files / SHELF).iterdir())], 2)
        look = (
            _call("search", pattern=re.escape(die.choice(WORDS))),
            _call("read_file", path=first),
            _call("read_file", path=second),
        )
        report = _call("write_file", path=f"{REPORTS}/{number:05}.txt", text=" ".join(die.choices(WORDS, k=12)))
        rounds = [
            Round(thinks="Where do I begin?", says=f"I look at {first} and {second} → and search.", calls=look),
            Round(says="Now the report.", calls=(report,)),
        ]
        if with_shell:
            rounds.append(Round(calls=(_call("shell", command=f"echo 'count {number} ∎'; wc -c {first}"),)))
        return ScriptedQuestion(
            asks=f"Stocktaking no. {number}, please.",
            rounds=tuple(rounds),
            concludes=f"Stocktaking no. {number} is done",
        )

    def plain_result(self, call: ScriptedCall) -> str:
        # Without a tool.
        given = call.arguments
        match call.name:
            case "read_file":
                return self.read(given["path"])
            case "search":
                return self.search(given["pattern"])
            case "write_file":
                return f"wrote {len(given['text'])} characters to {given['path']}"
        done = subprocess.run(  # noqa: S602 - a command of our own script
            given["command"], shell=True, cwd=self.files, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        return told(done.returncode, done.stdout)

    def has_written(self, path: str, text: str) -> bool:
        file = self.path_of(path)
        return file.exists() and file.read_text("utf-8") == text


def _call(name: str, **arguments: Any) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)


def told(code: int, output: bytes) -> str:
    return f"exit {code}\n{output.decode('utf-8', 'replace')[:OUTPUT_CHARS_MAX]}"


# --- the tools ---------------------------------------------------------------------------------------------------------


@tool(effect="pure")
async def read_file(path: str) -> str:
    """Read a text file of the workspace.

    Args:
        path: relative to the workspace, like shelf/000.txt.
    """
    workspace = Workspace.here()
    await workspace.work("read_file")
    return workspace.read(path)


@tool(effect="pure")
async def search(pattern: str) -> str:
    """Search the shelf of the workspace for lines that match.

    Args:
        pattern: a regular expression.
    """
    workspace = Workspace.here()
    await workspace.work("search")
    return workspace.search(pattern)


@tool
async def write_file(path: str, text: str) -> str:
    """Write a text file in the workspace, over whatever was there.

    Args:
        path: relative to the workspace.
        text: all that the file shall hold.
    """
    workspace = Workspace.here()
    workspace.path_of(path)
    workspace.note("write_file", {"path": path, "text": text})
    await workspace.work("write_file")
    return workspace.write(path, text)


@tool
async def shell(command: str) -> str:
    """Run a shell command in the workspace's directory and return its exit code and what it printed.

    Args:
        command: for /bin/sh.
    """
    workspace = Workspace.here()
    workspace.note("shell", {"command": command})
    await workspace.work("shell")
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_shell(
            command,
            cwd=workspace.files,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    )
    try:
        process = await asyncio.shield(starting)  # after a cancellation the process must still be known, to stop it
        output, _ = await process.communicate()
    except BaseException:
        await _stop(await starting)
        raise
    assert process.returncode is not None
    return told(process.returncode, output)


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    await process.wait()


TOOLS: Final = (read_file, search, write_file, shell)
