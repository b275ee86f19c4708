"""How soon a page is there in a headless Chromium. It needs the extra `browser`, and the system's package chromium."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATIENCE_MS = 60_000
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


@contextmanager
def chromium() -> Iterator[Callable[[str, str], Opened]]:
    """A browser within the block, as what opens a page in it and waits until it shows what is selected.

    Raises `FileNotFoundError` if there is none.
    """
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - the other groups do without the extra

    program = shutil.which("chromium")
    if program is None:
        raise FileNotFoundError("Chromium is missing; install Debian's package chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        try:
            yield partial(_opened, browser)
        finally:
            browser.close()


def _opened(browser: Browser, url: str, selector: str) -> Opened:
    """Open a page as somebody who never was there."""
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
