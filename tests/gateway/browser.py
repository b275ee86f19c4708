"""A headless Chromium on pages of a gateway."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page

PATIENCE_MS = 60_000


@contextmanager
def browser_page(browser: Browser, **options: object) -> Iterator[Page]:
    """A page that knows nothing of those before it. What its scripts report as an error fails the test at the end, violations of its
    content policy among them."""
    told: list[str] = []
    refused: list[str] = []
    with browser.new_context(**options) as context:  # type: ignore[arg-type]
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda problem: told.append(str(problem)))
        page.on("console", lambda said: told.append(said.text) if _is_ours(said.type, said.text) else None)
        page.on(
            "response", lambda answer: refused.append(f"{answer.status} {answer.url}") if answer.status >= 400 else None
        )
        try:
            yield page
        except AssertionError as problem:
            shown = page.locator("body").inner_text()
            problem.add_note(f"The page shows:\n{shown}\nThe browser told: {told}\nRefused were: {refused}")
            raise
        assert not told, told


def _is_ours(kind: str, text: str) -> bool:
    """Whether what the console says is an error of the page. The browser notes there, too, which requests were refused or lost."""
    return kind == "error" and not text.startswith("Failed to load resource")
