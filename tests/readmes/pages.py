"""How the tests read the READMEs: pages with sections, tables and blocks, and the modules that their examples make together."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType

from tests.tidy import ROOT

PATHS = (
    "README.md",
    "actors/README.md",
    "actors/chat/README.md",
    "actors/gateway/README.md",
    "actors/life/README.md",
    "actors/messenger/README.md",
    "actors/ray_world/README.md",
    "ledger/README.md",
    "policies/README.md",
    "scenarios/README.md",
    "tests/README.md",
)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TITLE = re.compile(r"\A# (\w+)\.py\n")
CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True)
class Page:
    """One README."""

    path: str

    @cached_property
    def text(self) -> str:
        return (ROOT / self.path).read_text("utf-8")

    @cached_property
    def prose(self) -> str:
        """Everything but the blocks, on one line."""
        return " ".join(BLOCK.sub("", self.text).split())

    @cached_property
    def words(self) -> list[str]:
        """What stands in backticks, outside of blocks."""
        return CODE.findall(self.prose)

    @cached_property
    def headings(self) -> list[tuple[int, str]]:
        """Level and title of each heading."""
        found = re.findall(r"^(#+) (.+)$", BLOCK.sub("", self.text), re.MULTILINE)
        return [(len(marks), title) for marks, title in found]

    def anchors(self) -> set[str]:
        """What a link may name after `#`."""
        return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for _, title in self.headings}

    def blocks(self, language: str) -> list[str]:
        """The blocks of one language."""
        return [text for each, text in BLOCK.findall(self.text) if each == language]

    def section(self, title: str) -> str:
        """The text under a heading of the second level, up to the next one."""
        _, _, rest = self.text.partition(f"\n## {title}\n")
        assert rest, f"there is no section {title!r} in {self.path}"
        return rest.partition("\n## ")[0]


PAGES = {path: Page(path) for path in PATHS}
FRONT, GUIDE, CHAT, GATEWAY, WAITING, MESSENGER, CLUSTER, LEDGER, LIMITS, SCENARIOS, WORK = PAGES.values()
PYTHON = [block for page in PAGES.values() for block in page.blocks("python")]
SHELL = "".join(block for page in PAGES.values() for block in page.blocks("sh"))
WORDS = [word for page in PAGES.values() for word in page.words]


def rows(text: str, *, table: int = 0) -> list[list[str]]:
    """The cells of the rows of a table, without its head."""
    tables = re.findall(r"(?:^\|.*\|\n)+", text + "\n", re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in tables[table].splitlines()[2:]]


def module_of(block: str) -> str | None:
    """The module that a block is a part of; its first line says so."""
    title = TITLE.match(block)
    return title[1] if title else None


def write_modules(place: Path) -> None:
    """Write the modules of the examples, as a reader would put them together."""
    for block in PYTHON:
        if name := module_of(block):
            with (place / f"{name}.py").open("a", encoding="utf-8") as file:
                file.write(block)


@contextmanager
def modules(place: Path) -> Iterator[None]:
    """Make the modules of the examples importable while this is open."""
    write_modules(place)
    sys.path.insert(0, str(place))
    try:
        yield
    finally:
        sys.path.remove(str(place))
        for path in place.glob("*.py"):
            sys.modules.pop(path.stem, None)


def example(name: str) -> ModuleType:
    """A module of the examples, while `modules` is open."""
    return importlib.import_module(name)
