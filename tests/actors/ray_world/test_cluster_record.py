"""What is remembered of a directory's Ray, and what is said when it cannot be joined."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from perdure.actors.ray_world.cluster_record import (
    AUTH,
    RECORD,
    explain_refusal,
    forget_record,
    mark_stopped,
    read_record,
    refuse_if_stopped,
    refuse_without_ledger,
    write_record,
)
from perdure.ledger import LedgerLost, LedgerUnwritable, NoLongerServed, SupervisorUnreachable

REFUSED = SupervisorUnreachable("Ray cannot be started or joined: Failed to connect")


def test_who_is_not_let_into_a_named_cluster_is_told_of_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AUTH, raising=False)
    assert "set RAY_AUTH_MODE=token" in str(explain_refusal(REFUSED, "10.0.0.1:6379"))
    monkeypatch.setenv(AUTH, "token")
    assert "see that ~/.ray/auth_token holds" in str(explain_refusal(REFUSED, "10.0.0.1:6379"))


def test_nobody_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AUTH, raising=False)
    assert explain_refusal(REFUSED, None) is REFUSED
    silence = SupervisorUnreachable("no Ray answers at 10.0.0.1:6379")
    assert explain_refusal(silence, "10.0.0.1:6379") is silence


def test_who_is_still_connected_when_a_directory_is_stopped_is_refused_until_it_is_served_anew(tmp_path: Path) -> None:
    write_record(tmp_path, "127.0.0.1:1")
    refuse_if_stopped(tmp_path, "127.0.0.1:1")
    mark_stopped(tmp_path, "127.0.0.1:1")
    with pytest.raises(NoLongerServed, match=r"was stopped \(`perdure stop`\) — open it anew"):
        refuse_if_stopped(tmp_path, "127.0.0.1:1")
    refuse_if_stopped(tmp_path, "127.0.0.1:2")
    write_record(tmp_path, "127.0.0.1:1")
    refuse_if_stopped(tmp_path, "127.0.0.1:1")


def test_who_forgets_a_ray_that_has_ended_forgets_its_record_and_not_that_of_its_successor(tmp_path: Path) -> None:
    write_record(tmp_path, "127.0.0.1:1")
    forget_record(tmp_path, "127.0.0.1:1")
    assert not (tmp_path / RECORD).exists()
    forget_record(tmp_path, "127.0.0.1:1")
    write_record(tmp_path, "127.0.0.1:2")
    forget_record(tmp_path, "127.0.0.1:1")
    assert '"127.0.0.1:2"' in (tmp_path / RECORD).read_text("utf-8")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"address": 5}', '{"address": "nowhere"}', '{"address": "a:1", "b": 2}']
)
def test_a_record_that_makes_no_sense_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / RECORD).write_text(text, encoding="utf-8")
    assert read_record(tmp_path) is None
    refuse_if_stopped(tmp_path, "127.0.0.1:1")


def test_a_record_that_cannot_be_written_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LedgerUnwritable, match="No space left on device — free some space, or name another"):
        write_record(tmp_path, "127.0.0.1:1")
    assert list(tmp_path.iterdir()) == []


STORAGE = "agents/3f/Till-0123456789abcdef0123456789abcdef.db"


def laid(directory: Path, *files: str) -> Path:
    """A directory with these files; a name that ends in / is a folder."""
    for file in files:
        path = directory / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(exist_ok=True) if file.endswith("/") else path.write_bytes(b"something")
    return directory


@pytest.mark.parametrize(
    "files",
    [
        (STORAGE,),
        (STORAGE, "ledger/"),
        (STORAGE, "ledger/ledger.lock", "format", "code/0123.zip", "logs/supervisor.jsonl"),
        (STORAGE, "ledger"),
        ("ledger",),
    ],
)
def test_a_directory_with_storages_and_no_ledger_is_refused_in_words_that_do_no_harm(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    with pytest.raises(LedgerLost) as refused:
        refuse_without_ledger(laid(tmp_path, *files))
    told = str(refused.value)
    assert str(tmp_path / "ledger") in told
    assert "delete" not in told
    assert "would begin" not in told


@pytest.mark.parametrize(
    "files",
    [
        (),
        ("notes.txt", "src/main.py", "agents/README.md", "agents/mine.db"),
        (
            "agents/",
            "agents/locks/",
            "agents/tmp/blank.db",
            "code/0123.zip",
            "logs/supervisor.jsonl",
            "format",
            "cluster.lock",
        ),
        (STORAGE, "ledger/ledger.db"),
        (STORAGE, "ledger/ledger.journal.7"),
    ],
)
def test_a_fresh_directory_one_of_foreign_files_and_one_with_a_ledger_are_fine(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    refuse_without_ledger(laid(tmp_path, *files))
