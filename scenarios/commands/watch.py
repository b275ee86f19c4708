"""`perdure ps --watch`: a live picture on a terminal that heeds keys, plain lines in a pipe, objects with `--json`. Ctrl-C ends it.

It joins what serves the directory and starts nothing. When the supervisor dies it says so, keeps its picture, and goes on with the next
life; when nothing serves the directory it waits until something does.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol, Self

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from perdure.ledger import BadRequest, PerdureError, SupervisorUnreachable
from perdure.scenarios.commands.desk import Desk
from perdure.scenarios.commands.keys import Keys
from perdure.scenarios.commands.shown import json_of
from perdure.scenarios.commands.tray import Tray
from perdure.scenarios.exits import TERMINATED
from perdure.scenarios.faults.observer import Observer

FRAME_S: Final = 0.25
LINE_S: Final = 1.0
SHARE: Final = 3  # a pause is at least so many times as long as the look before it


class Asked(Protocol):
    """Who answers for a directory."""

    async def ask(self, name: str, *args: Any) -> Any:
        """Answer a question, or do what is wished for."""


class Screen(ABC):
    """Where a tray is shown."""

    pause_s = FRAME_S

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return

    @abstractmethod
    def show(self, desk: Desk, *, is_new: bool) -> None:
        """Show it as it is now. `is_new` says that there was a look since."""

    @abstractmethod
    def say(self, text: str) -> None:
        """Tell of one event."""


class LivePicture(Screen):
    """A terminal: the picture stays in its place, and events scroll by above it."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, desk: Desk, *, is_new: bool) -> None:
        self._live.update(desk.picture(time.monotonic(), self._console.height), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(Text(f"{_now()} {text}", style="yellow"))


class Lines(Screen):
    """A pipe: a line for each look that has something new, and for each event."""

    pause_s = LINE_S

    def __init__(self) -> None:
        self._last = ""

    def show(self, desk: Desk, *, is_new: bool) -> None:
        line = desk.tray.line(time.monotonic())
        if is_new and line != self._last:
            self._last = line
            self.say(line)

    def say(self, text: str) -> None:
        print(f"{_now()} {text}", flush=True)


class Objects(Screen):
    """`--json`: the overview of each look as an object on a line; while nobody answers, null."""

    pause_s = LINE_S

    def show(self, desk: Desk, *, is_new: bool) -> None:
        if is_new:
            told: dict[str, Any] = {
                "at_ms": time.time_ns() // 1_000_000,
                "answered": desk.tray.is_answered,
                "overview": desk.tray.overview,
            }
            print(json_of(told), flush=True)

    def say(self, text: str) -> None:
        """Events are in the overviews."""


def _now() -> str:
    return f"{datetime.now(UTC):%H:%M:%S}"


def watch(data: Path, live_max: int, *, as_json: bool) -> None:
    """Watch until Ctrl-C or `SIGTERM`."""
    if not data.exists():
        raise BadRequest("data", f"there is no directory {data}")
    screen = Objects() if as_json else LivePicture() if sys.stdout.isatty() else Lines()
    try:
        asyncio.run(_watch(data, live_max, screen))
    except asyncio.CancelledError:
        raise typer.Exit(TERMINATED) from None


async def _watch(data: Path, live_max: int, screen: Screen) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    desk = Desk(Tray(str(data)))
    with screen, Keys() as keys:
        async with Observer(data) as observer:
            while not desk.is_over:
                took_s = await _look(observer, live_max, screen, desk, keys)
                await _heed(observer, screen, desk, keys, max(screen.pause_s, SHARE * took_s))


async def _heed(observer: Observer, screen: Screen, desk: Desk, keys: Keys, pause_s: float) -> None:
    """Do what keys ask for until it is time to look again."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + pause_s
    while not desk.is_over and (left_s := until_s - loop.time()) > 0:
        pressed = await keys.wait(left_s)
        for key in pressed:
            desk.press(key)
        await attend(observer, desk)
        if pressed:
            screen.show(desk, is_new=False)


async def attend(observer: Asked, desk: Desk) -> None:
    """Have wishes done, and ask for what is shown. What is refused is told."""
    try:
        while desk.wishes:
            wish = desk.wishes.popleft()
            desk.done(wish, await observer.ask(*wish.question))
        for question in desk.questions():
            desk.hear(question, await observer.ask(*question))
    except PerdureError as problem:
        desk.refused(str(problem))


async def _look(observer: Observer, live_max: int, screen: Screen, desk: Desk, keys: Keys) -> float:
    """Look once, and show what is seen. Returns how many seconds an answer took."""
    began_s, took_s = time.monotonic(), 0.0
    looking = asyncio.ensure_future(observer.ask("ps", live_max))
    try:
        while not desk.is_over and not (await asyncio.wait({looking}, timeout=FRAME_S))[0]:
            for key in keys.taken():
                desk.press(key)
            screen.show(desk, is_new=False)
    finally:
        looking.cancel()
        if not looking.done():
            with contextlib.suppress(asyncio.CancelledError):
                await looking
    if desk.is_over:
        return took_s
    tray = desk.tray
    try:
        overview = looking.result()
    except SupervisorUnreachable as problem:
        said = tray.miss(str(problem), time.monotonic())
    else:
        took_s = time.monotonic() - began_s
        said = tray.see(overview, time.monotonic())
    for text in said:
        screen.say(text)
    screen.show(desk, is_new=True)
    return took_s
