"""What is remembered of a directory's Ray, and what is said when it cannot be joined."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from perdure.actors.ray_world.cluster_record import (
    ADDRESS,
    AUTH,
    RECORD,
    ClusterRecord,
    explain_refusal,
    forget_record,
    is_started_here,
    mark_stopped,
    nothing_serves,
    ray_of,
    rays_of,
    read_record,
    refuse_if_stopped,
    refuse_without_ledger,
    remember,
    traces_of,
    write_record,
)
from perdure.actors.ray_world.os_processes import home, runs_here
from perdure.ledger import (
    Claim,
    Holder,
    LedgerLost,
    LedgerUnwritable,
    NoLongerServed,
    SupervisorUnreachable,
    Traces,
    begin_cache,
    open_bucket,
)

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


def test_a_ray_ends_with_a_program_of_this_machine_if_that_very_one_is_on_record_as_its_own(tmp_path: Path) -> None:
    assert not is_started_here(tmp_path, "127.0.0.1:1")
    write_record(tmp_path, "127.0.0.1:1", os.getpid())
    assert is_started_here(tmp_path, "127.0.0.1:1")
    assert not is_started_here(tmp_path, "127.0.0.1:2"), "a cluster that was joined since"
    write_record(tmp_path, "127.0.0.1:1")
    assert not is_started_here(tmp_path, "127.0.0.1:1")


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


@contextmanager
def answering() -> Iterator[str]:
    """The address of what answers there as a Ray does."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            while (knocking := server.accept()[0]).recv(1):
                knocking.sendall(b"!")
                knocking.close()
            knocking.close()

        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        socket.create_connection(server.getsockname()).close()
        thread.join()


@contextmanager
def running(session: str) -> Iterator[None]:
    """Within, a process runs here whose command line has this, as those of a Ray have its session."""
    asked = [sys.executable, "-c", "print(flush=True); input()", session]
    with subprocess.Popen(asked, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # for a moment after its exec a process has no command line yet
        try:
            yield
        finally:
            process.communicate(b"\n")


def test_a_bucket_tells_the_machines_of_its_cluster_where_its_ray_is_and_others_where_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(ADDRESS, raising=False)
    url, session = f"file://{tmp_path}/bucket", f"session_{tmp_path.name}_{os.getpid()}"
    data = begin_cache(url)
    assert (ray_of(data), "tells of nobody" in nothing_serves(data)) == (None, True)
    with answering() as serving, answering() as named, answering() as noted:
        with closing(
            open_bucket(tmp_path / "ledger", url, Claim(session, "m1", address=serving, auth="token"))
        ) as store:
            store.boot()
            assert ray_of(data) is None, "this machine is no node of it"
            assert "run this on a machine of that cluster: m1" in nothing_serves(data)
            with running(session):
                found = ClusterRecord(serving, "token")
                assert ray_of(data) == found
                monkeypatch.setenv(ADDRESS, named)
                write_record(data, noted)
                assert [each.address for each in rays_of(data)] == [noted, named, serving]
                mark_stopped(data, noted)
                remember(data, serving)
                assert [each.address for each in rays_of(data)][:2] == [serving, named]
                mark_stopped(data, serving)
                store.close()
                store.depart()
                assert [each.address for each in rays_of(data)] == [named], "it was stopped, on whichever machine"
        assert "was stopped, and nobody has followed" in nothing_serves(data)


def test_of_a_ray_are_seen_its_processes_and_whether_its_port_refuses() -> None:
    session = f"session_seen_{os.getpid()}"
    with answering() as address:
        assert traces_of(Holder(session, address=address)) == Traces(has_processes=False, refuses=False)
        with running(session):
            assert runs_here(session)
            assert traces_of(Holder(session, address=address)) == Traces(has_processes=True, refuses=False)
    assert traces_of(Holder(session, address=address)) == Traces(has_processes=False, refuses=True)
    assert not traces_of(Holder(session)).refuses, "nobody knows where it was"
    assert not runs_here(session)
    assert home() == home() != ""


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
        ("identity",),
        ("identity", "ledger/"),
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
        ("identity", "ledger/ledger.db"),
        ("identity", "ledger/identity"),
        ("ledger/identity",),
    ],
)
def test_a_fresh_directory_one_of_foreign_files_and_one_with_a_ledger_are_fine(
    tmp_path: Path, files: tuple[str, ...]
) -> None:
    refuse_without_ledger(laid(tmp_path, *files))
