"""What a stranger installs: one import package, `perdure`, from a wheel, from an sdist, or live from a checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import hatchling.build
import pytest

from tests.tidy import FOLDERS, ROOT, sources

pytestmark = pytest.mark.thorough

ALL = "import perdure.cli, perdure.testing, perdure.messengers, perdure.gateway; from perdure import *; print(perdure.__file__)"
SURFACE = {
    "__init__.py",
    "__main__.py",
    "cli.py",
    "gateway.py",
    "lazy_names.py",
    "messengers.py",
    "py.typed",
    "testing.py",
}


class Built(NamedTuple):
    """The two distributions of this checkout."""

    wheel: Path
    sdist: Path


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    out = tmp_path_factory.mktemp("dist")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return Built(out / hatchling.build.build_wheel(str(out)), out / hatchling.build.build_sdist(str(out)))


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def python(*arguments: str, path: Path | None = None, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PYTHONPATH": str(path)} if path is not None else {}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


def test_the_wheel_brings_one_package_with_all_of_our_code_and_nothing_else(built: Built) -> None:
    files = contents(built.wheel)
    code = {name for name in files if not name.startswith("perdure-0.1.0.dist-info/")}
    ours = {f"perdure/{source.path}" for source in sources(*FOLDERS)}
    page = {f"perdure/{each.relative_to(ROOT)}" for each in (ROOT / "actors/dashboard/assets").iterdir()}
    data = {"perdure/ledger/schema.sql", "perdure/actors/gateway/ray_job.yaml"}
    assert code == {*ours, *page, *data, *(f"perdure/{name}" for name in SURFACE)}
    assert "perdure = perdure.cli:main" in files["perdure-0.1.0.dist-info/entry_points.txt"].decode()


def test_a_wheel_that_is_built_from_the_sdist_is_the_same(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path / "perdure-0.1.0")
    again = tmp_path / hatchling.build.build_wheel(str(tmp_path))
    assert contents(again) == contents(built.wheel)


@pytest.mark.parametrize("kind", Built._fields)
def test_each_of_them_installs_and_is_imported_from_elsewhere(built: Built, kind: str, tmp_path: Path) -> None:
    target = tmp_path / "installed"
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--no-compile", "--target", str(target)]
    done = python("-m", "pip", "install", *options, str(getattr(built, kind)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {each.name for each in target.iterdir()} == {"bin", "perdure", "perdure-0.1.0.dist-info"}
    done = python("-c", ALL, path=target, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == (str(target / "perdure" / "__init__.py"), "")
    for folder in FOLDERS:
        done = python("-c", f"import {folder}", path=target, cwd=tmp_path)
        assert f"No module named '{folder}'" in done.stderr


def test_an_editable_install_is_this_checkout_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    files = contents(tmp_path / hatchling.build.build_editable(str(tmp_path)))
    (link,) = (text.decode() for name, text in files.items() if name.endswith(".pth"))
    assert not [name for name in files if name.endswith(".py")]
    assert link.split() == [str(ROOT / ".src")]
    done = python("-c", ALL, path=Path(link.strip()), cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == (str(ROOT / ".src" / "perdure" / "__init__.py"), "")


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_of_the_checkout_is_no_package_of_its_own(folder: str) -> None:
    """With Perdure installed it would be a second copy of every module."""
    refusal = f"ImportError: this folder is a part of the package `perdure`: import `perdure.{folder}`"
    assert refusal in python("-c", f"import {folder}", path=ROOT / ".src", cwd=ROOT).stderr
    alone = python("-S", "-c", f"import {folder}", cwd=ROOT)
    assert alone.returncode == 1
    assert "`perdure`" in alone.stderr or "No module named 'perdure'" in alone.stderr
