"""`perdure ps --watch` by its keys: runs are chosen, opened, explained, cancelled, tried again, cleared and filtered."""

from __future__ import annotations

import asyncio
import io
import os
import termios
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from rich.console import Console

from perdure.actors import Agent, RunContext
from perdure.scenarios.commands.desk import Desk, timeline
from perdure.scenarios.commands.keys import Keys, keys_in
from perdure.scenarios.commands.tray import Tray
from perdure.scenarios.commands.watch import attend
from perdure.scenarios.testing.laboratory import Laboratory


class Worker(Agent):
    """Goes on for as many seconds as it is told, or fails."""

    async def run(self, input: int, run: RunContext) -> str:
        if input < 0:
            raise ValueError("as asked")
        await run.report_progress(fraction=0.5, phase="half", milestone="half-way")
        await asyncio.sleep(input)
        return "there"


class Person:
    """Somebody before a terminal of 24 lines."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.desk = Desk(Tray("data"))

    async def press(self, *keys: str) -> str:
        """Press keys one after the other. Returns what the terminal shows then."""
        for key in keys or ("none",):
            self.desk.press(key)
            await attend(self.client, self.desk)
        self.desk.tray.see(await self.client.ask("ps", 50), 1.0)
        self.see()  # the lines of the tray are those of its last picture
        return self.see()

    def see(self, width: int = 140) -> str:
        console = Console(file=io.StringIO(), record=True, width=width, height=24, force_terminal=True)
        console.print(self.desk.picture(1.0, 24))
        text = console.export_text()
        assert len(text.splitlines()) <= 24
        return text

    async def status(self, run_id: str) -> str:
        return str((await self.client.ask("show", run_id))["status"])


def play(story: Callable[[Person], Awaitable[None]]) -> None:
    with Laboratory(3) as laboratory:

        async def played(client: Any) -> None:
            for name, seconds in (("long", 5_000), ("other", 5_000), ("fails", -1)):
                await client.start(Worker, seconds, run_id=name)
            await client.run(Worker, -1, run_id="fails")
            while len((await client.ask("ps", 50))["live"]) != 2:
                await asyncio.sleep(0.1)
            person = Person(client)
            await person.press()
            await story(person)
            await client.ask("clear", ["long", "other"])

        laboratory.play(played, 600_000)
        laboratory.settle()


def test_a_run_is_chosen_opened_and_left() -> None:
    async def story(person: Person) -> None:
        await person.press("down", "down", "down")
        assert person.desk.chosen == person.desk.tray.shown()[-1]
        await person.press("up", "up")
        first = person.desk.chosen
        assert first == person.desk.tray.shown()[0]
        opened = await person.press("enter")
        assert f"{first}  " in opened.splitlines()[0]
        assert "running  attempt 1  on " in opened
        for words in ("started  agent_type: ", "milestone  name: half-way", "fraction: 0.5"):
            assert words in opened
        assert "e explain" in opened
        assert "↑↓ choose" in await person.press("escape")

    play(story)


def test_a_run_is_cancelled_and_cleared_only_after_a_yes() -> None:
    async def story(person: Person) -> None:
        await person.press("down", "/", *"long", "enter")
        await person.press("down")
        assert person.desk.chosen == "long"
        assert "cancel long? y or n" in await person.press("c")
        assert "nothing was done" in await person.press("n")
        assert await person.status("long") == "running"
        assert "long was cancelled" in await person.press("c", "y")
        assert await person.status("long") == "aborted"
        assert "clear long? y or n" in await person.press("x")
        assert "long was cleared" in await person.press("y")
        with pytest.raises(Exception, match="no run 'long' is known"):
            await person.status("long")

    play(story)


def test_all_runs_are_listed_filtered_tried_again_and_explained() -> None:
    async def story(person: Person) -> None:
        listed = await person.press("a", "none")
        assert [word for word in ("fails", "long", "other") if word in listed] == ["fails", "long", "other"]
        assert "as asked" in listed
        narrow = person.see(80).splitlines()
        assert any(line.startswith("fails  error        1") for line in narrow), (
            "who it is and how it stands is not cut"
        )
        found = await person.press("/", *"FAIx", "backspace", "enter", "down")
        assert "/FAI  ↑↓ choose" in found
        assert "other" not in found
        assert person.desk.chosen == "fails"
        assert "fails will be tried again" in await person.press("r")
        assert (await person.client.ask("show", "fails"))["retries"] == 1
        assert "running" in await person.press("/", "escape", "up", "up", "up", "down", "e")
        refused = await person.press("down", "down", "down", "down", "r")
        assert "long" in refused.splitlines()[-1], "why it is refused"

    play(story)


def test_what_is_gone_is_said_and_closed() -> None:
    async def story(person: Person) -> None:
        await person.press("down", "down")
        gone = person.desk.chosen
        await person.client.ask("clear", [gone])
        assert f"no run '{gone}' is known" in await person.press("enter")
        person.desk.press("q")
        assert person.desk.is_over

    play(story)


def test_streamed_text_is_one_line_that_grows() -> None:
    def chunk(delta: str) -> dict[str, Any]:
        return {"event": {"kind": "chunk", "body": {"type": "text-delta", "delta": delta}, "at_ms": 1_000}}

    attempt = {"event": {"kind": "attempt", "attempt": 2, "at_ms": 2_000}}
    assert timeline([chunk("to "), chunk("be\n"), attempt, chunk("or")]) == [
        "00:00:01  text  to be ",
        "00:00:02  attempt  attempt: 2",
        "00:00:01  text  or",
    ]


def test_keys_are_known_by_what_terminals_send() -> None:
    assert keys_in("j\x1b[A\x1bOBq\r\x7f\x1b[5~é\x1b[1;5C\x01") == [
        "j",
        "up",
        "down",
        "q",
        "enter",
        "backspace",
        "page up",
        "é",
    ]
    assert keys_in("\x1b") == ["escape"]


def test_keys_come_one_by_one_and_the_terminal_is_left_as_it_was() -> None:
    ours, theirs = os.openpty()
    before = termios.tcgetattr(theirs)

    async def typed() -> list[str]:
        with os.fdopen(theirs, "r", closefd=False) as file, Keys(file) as keys:
            assert await keys.wait(0.01) == []
            os.write(ours, b"c\x1b[B")
            return await keys.wait(60)

    try:
        assert asyncio.run(typed()) == ["c", "down"]
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)
