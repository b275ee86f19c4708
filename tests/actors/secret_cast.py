"""Agents that do with a revealed secret whatever could carry it away, and a mark beside it that shows where that would have been seen."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel
from pydantic_ai.models.test import TestModel

from perdure.actors import Agent, ChatAgent, RunContext, exposed, tool
from perdure.ledger import Secret

NAME = "PERDURE_TEST_SECRET"
MARK = "beside-the-secret"


class Door(BaseModel):
    """What a typed input may hold."""

    key: Secret
    number: int = 1


class Careless(Agent):
    """Writes the value wherever an agent can write, and fails with it."""

    stands_alone = True

    async def run(self, input: Any, run: RunContext) -> str:
        value = f"{MARK} {input['key'].reveal()}"
        self.state["key"], self.state["value"] = input["key"], value
        self.sql("CREATE TABLE notes(note VARCHAR)")
        self.sql("INSERT INTO notes VALUES ($1)", [value])
        self.sql(f"INSERT INTO notes VALUES ('{value}')")

        async def ask() -> dict[str, str]:
            return {"header": value}

        await run.step("ask", ask)
        run.stash([value.encode()])
        await run.report_progress(0.5, phase="asking", message=value)
        await run.report_progress(milestone="asked", data={"answer": value})
        run.emit({"chunk": value})
        print(value)  # noqa: T201 - its output is looked through
        print(value, file=sys.stderr)  # noqa: T201 - the same
        logging.getLogger("careless").warning("asked with %s", value)
        raise RuntimeError(f"the provider refused {value}")

    @exposed
    async def told(self) -> Any:
        """What it wrote."""
        return [self.state["key"], self.state["value"], [note for (note,) in self.sql("SELECT note FROM notes")]]


class Careful(Agent):
    """Hands a reference on, in an answer that names none of its value."""

    async def run(self, input: Door) -> Any:
        return {"key": input.key, "length": len(input.key.reveal())}


@tool(effect="pure")
async def echo(word: str) -> str:
    """What a provider's error might say."""
    return f"{MARK} {word} {Secret(NAME).reveal()}"


class Echo(ChatAgent):
    """Has the value in a tool's output, and so in its transcript, in its answer and in all events of these."""

    model: ClassVar[Any] = TestModel()

    def tools(self) -> list[object]:
        return [echo]


def found_in(directory: Path, text: str) -> list[Path]:
    """The files in which a text can be read."""
    files = [path for path in directory.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path for path in files if text.encode() in path.read_bytes()]
