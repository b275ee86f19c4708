"""Which directory `data` means, and which are refused before anything is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.actors import Runtime, data_directory
from perdure.actors.runtime.data_directory import check_program
from perdure.ledger import BadRequest
from tests.tidy import IMPORT_PATH


def test_the_home_is_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_directory("~/x") == data_directory(Path("~/x")) == tmp_path / "x"
    monkeypatch.delenv("HOME")
    assert data_directory("~/x").is_absolute(), "the system knows the home, too"
    assert data_directory("~nobody-of-this-name/x") == Path("~nobody-of-this-name/x")


@pytest.mark.parametrize(
    "name", ["a b", "a#b", "a%20b", "~a", "a'b\"c", "a\nb", "ä日", "$HOME;x", "{a}", "a*[b]", "a@b>c", "a:b"]
)
def test_most_names_are_as_good_as_any(name: str, tmp_path: Path) -> None:
    assert data_directory(tmp_path / name) == tmp_path / name


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "it is blank; name a directory"),
        (" \n", "it is blank"),
        (None, "None is no path"),
        (7, "7 is no path"),
        (b"data", "is no path"),
        ("a?b", r"has a '\?': DuckDB takes what follows it for options"),
        ("a\\b/data", "has a .*: DuckDB takes it for a separator"),
        ("a\0b", "."),
        (os.fsdecode(b"a\xff"), "is no UTF-8"),
        ("file", "'file' is no directory"),
        ("file/data", "'file/data' lies below .*file', which is no directory"),
        ("link/data", "."),
        ("gone", "'gone' is a link that leads nowhere"),
        ("gone/data", "'gone/data' lies below .*gone', which is a link that leads nowhere"),
        ("x" * 300, "File name too long"),
    ],
)
def test_what_cannot_be_a_data_directory_is_refused_before_anything_is_started(
    given: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("link")
    (tmp_path / "gone").symlink_to("not mounted")
    with pytest.raises(BadRequest, match=said) as refused:
        Runtime(data=given)
    assert refused.value.field == "data"


def test_a_working_directory_that_is_gone_is_told(tmp_path: Path) -> None:
    text = (
        f"import os; os.chdir({str(tmp_path)!r}); os.rmdir({str(tmp_path)!r})\n"
        "from perdure.actors import data_directory\n"
        "from perdure.actors.runtime.data_directory import check_program\n"
        "print(data_directory('/somewhere'))\n"
        "try: check_program()\nexcept Exception as problem: print(problem)\n"
        "data_directory('data')"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], env={"PYTHONPATH": IMPORT_PATH}, capture_output=True, text=True, check=False
    )
    told = "runtime: the working directory of this program is not there any more, and Ray needs one; change to another"
    assert done.stdout.splitlines() == ["/somewhere", told]
    assert done.stderr.strip().endswith("the working directory is not there any more; name an absolute path")


def test_a_program_in_a_folder_that_ray_cannot_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    check_program()
    monkeypatch.setattr(sys, "path", [os.fsdecode(b"/a\xff"), *sys.path])
    with pytest.raises(BadRequest, match="which is no UTF-8, and Ray takes no such path; move it"):
        check_program()
