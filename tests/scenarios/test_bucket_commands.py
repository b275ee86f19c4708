"""The commands on a bucket that no supervisor serves, and what is said of URLs and of what a bucket does not do."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perdure.actors import Runtime, data_directory, everywhere, served_findings, storages_in
from perdure.ledger import FORMAT, BadRequest, Claim, SupervisorStarted, View, bucket_of, record_fact
from perdure.ledger.bucket_cache import cache_of
from perdure.ledger.maintenance.looking import BucketSource
from perdure.ledger.storage.patches import Patch, whole
from perdure.ledger.store.bucket import Bucket, BucketRefused
from perdure.ledger.store.bucket_store import open_bucket
from perdure.policies import Limits
from tests.ledger.directories import file_of, lived, written
from tests.s3_server import in_thread
from tests.scenarios.command import perdure, perdure_json

NOTE = "n@m:Note"


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def filled(url: str, tmp_path: Path) -> str:
    """A bucket with some facts and one storage, of which a root knows."""
    store = open_bucket(tmp_path / "writer" / "ledger", url, Claim("session_7", "till-1", address="till-1:1"))
    store.boot()
    store.root_s = 0
    come = written(tmp_path / "agent", NOTE, 1, "x")
    view = View()
    facts = [record_fact(view, each, 1_000) for each in (SupervisorStarted(1, asdict(Limits())), *lived(NOTE, 1, come))]
    store.append(facts, [], [Patch(NOTE, 1, 1, [whole("", file_of(tmp_path / "agent", NOTE).read_bytes())])])
    store.close()
    return url


def test_it_is_looked_at_without_beginning_anything(filled: str, tmp_path: Path) -> None:
    before = sorted((tmp_path / "bucket").rglob("*"))
    assert filled in perdure("ps", "--data", filled).output, "as it was given, and not where its cache is"
    for command in ("ps", "show"):
        perdure_json(command, "--data", filled)
    assert perdure_json("audit", "--data", filled)["balanced"]
    assert sorted((tmp_path / "bucket").rglob("*")) == before


@pytest.mark.parametrize("deep", [True, False])
def test_doctor_verifies_it_and_names_what_is_damaged(filled: str, tmp_path: Path, *, deep: bool) -> None:
    options = ["doctor", "--data", filled, *(["--deep"] if deep else [])]
    whole_one = perdure(*options)
    assert whole_one.exit_code == 0, whole_one.output
    assert "1 storages" in whole_one.stdout
    (pack,) = [each for each in (tmp_path / "bucket" / "storage").rglob("*") if each.is_file()]
    pack.write_bytes(b"c0ntent")
    harmed = perdure(*options)
    assert (harmed.exit_code, "do not fit their digest" in harmed.stdout) == ((1, True) if deep else (0, False))


def test_what_a_bucket_does_not_do_is_said(filled: str, tmp_path: Path) -> None:
    copies = str(tmp_path / "copies")
    for arguments, words in (
        (["doctor", "--repair", "--data", filled], "nothing is repaired"),
        (["backup", filled, copies], f"perdure restore {filled} {copies}"),
        (["backup", filled, "--name", "a/b"], "letters, digits, dots"),
        (["backup", filled, "--delete", "monday"], "has no backup 'monday'"),
        (["backup", copies], "say where backups lie"),
        (["backup", copies, copies, "--list"], "are for a bucket"),
        (["restore", copies, filled], "has no whole backup"),
        (["restore", filled, copies, "--at", "soon"], "neither the number of a slot nor a time"),
        (["restore", filled, copies, "--at", "99"], "slot 99 is not kept"),
        (["restore", filled, copies, "--at", "1970-01-01"], "nothing had been committed"),
        (["restore", filled, copies, "--backup", "monday"], "has no backup 'monday'"),
        (["restore", filled, copies, "--backup", "monday", "--at", "2"], "say --at or --backup"),
        (["restore", copies, copies, "--at", "2"], "has no ledger"),
        (["restore", filled, filled], "is not empty"),
        (["restore", filled, f"{filled}2", "--replace"], "no prefix is moved aside"),
        (["restore", f"{filled}3", copies], "has no whole backup"),
    ):
        told = perdure(*arguments)
        assert told.exit_code != 0
        assert words in told.output + str(told.exception), arguments
    assert not (tmp_path / "copies" / "ledger").exists()


def test_it_is_brought_into_a_directory_and_from_there_into_another_prefix(filled: str, tmp_path: Path) -> None:
    copy, other, backups, third = str(tmp_path / "copy"), f"{filled}-2", str(tmp_path / "backups"), f"{filled}-3"
    for source, target, words in (
        (filled, copy, f"{filled} up to slot 2, with 1 storages, is in {copy}"),
        (filled, other, f"{filled} up to slot 2, with 1 storages, is in {other}"),
        (other, third, f"{other} up to slot 0, with 1 storages, is in {third}"),
    ):
        told = perdure("restore", source, target)
        assert told.exit_code == 0, told.output
        assert words in told.stdout
    assert file_of(Path(copy), NOTE).read_bytes() == file_of(tmp_path / "agent", NOTE).read_bytes()
    assert (Path(copy) / "format").read_text() == f"{FORMAT}\n"
    assert not list(Path(copy).parent.glob("copy.restoring*"))
    for data in (copy, other, third):
        assert perdure_json("audit", "--data", data)["balanced"]
    assert "not empty" in str(perdure("restore", filled, copy).exception)
    assert perdure("backup", copy, backups).exit_code == 0
    told = perdure("restore", backups, f"{filled}-4")
    assert told.exit_code == 0, told.output
    assert f"is in {filled}-4" in told.stdout


def test_a_backup_of_it_is_kept_in_it_until_it_is_deleted(filled: str, tmp_path: Path) -> None:
    for name in ("", "monday", ""):
        told = perdure("backup", filled, *(["--name", name] if name else []))
        assert told.exit_code == 0, told.output
        assert "1 storages and the ledger up to fact 3, at slot 2" in told.stdout
    assert [line.split()[0] for line in perdure("backup", filled, "--list").stdout.splitlines()] == [
        "00000001",
        "monday",
        "00000002",
    ]
    assert "has a backup 'monday' already" in str(perdure("backup", filled, "--name", "monday").exception)
    assert "there are 3 backups" in perdure("doctor", "--data", filled).stdout
    copy = str(tmp_path / "copy")
    assert perdure("restore", filled, copy, "--backup", "monday").exit_code == 0
    assert perdure("backup", filled, "--delete", "monday").exit_code == 0
    made = perdure_json("backup", filled, "--keep", "1")
    assert (made["name"], made["pruned"]) == ("00000003", 2)
    assert perdure_json("backup", filled, "--list")[0]["slot"] == 2


def test_doctor_names_what_is_strange_and_what_a_backup_lacks(filled: str, tmp_path: Path) -> None:
    assert perdure("backup", filled).exit_code == 0
    (tmp_path / "bucket" / "cat.jpg").write_bytes(b"cat")
    told = perdure("doctor", "--data", filled)
    assert (told.exit_code, "1 objects (cat.jpg) are not of this ledger" in told.stdout) == (0, True)
    (pack,) = [each for each in (tmp_path / "bucket" / "storage").rglob("*") if each.is_file()]
    pack.unlink()
    told = perdure("doctor", "--data", filled)
    assert (told.exit_code, "the backup 00000001 lacks 1 objects (storage/" in told.stdout) == (1, True)


def test_what_changes_it_goes_through_its_supervisor(filled: str) -> None:
    changes = perdure("forget", "n@m:Note", "--yes", "--data", filled)
    assert "goes through its supervisor" in str(changes.exception)
    assert "served by till-1 (Ray's session_7 at till-1:1) since" in str(changes.exception)
    assert "run this on a machine of that cluster: till-1" in str(changes.exception)
    assert f"No supervisor that is known on this machine serves {filled}." in changes.stderr


def test_the_storages_in_it_are_counted_and_one_that_cannot_be_read_is_named(filled: str, tmp_path: Path) -> None:
    store = open_bucket(tmp_path / "writer" / "ledger", filled)
    store.boot()
    store.append([], [], [Patch("bad@m:Note", 1, 1, [whole("", b"content")])])
    store.close()
    assert perdure_json("show", "--data", filled)["storages"] == 2
    for command in ("fibers", "schedules", "turns"):
        told = perdure(command, "--data", filled)
        assert "in 2 storages" in told.stdout
        assert "a storage cannot be read: bad@m:Note" in told.stderr
    for pack in [each for each in (tmp_path / "bucket" / "storage").rglob("*") if each.is_file()]:
        pack.write_bytes(b"c0ntent")
    assert "do not fit their digest" in perdure("fibers", "--data", filled).stderr
    assert "of which 2 cannot be read" in perdure("ps", "--data", filled).stdout
    assert "do not fit their digest" in str(perdure("inspect", NOTE, "--data", filled).exception)


def test_those_that_were_written_last_come_first_and_large_ones_may_be_left_out(url: str, tmp_path: Path) -> None:
    def commit(root_s: float, **sizes: int) -> None:
        with closing(open_bucket(tmp_path / "writer" / "ledger", url)) as store:
            store.boot()
            store.root_s = root_s
            for name, size in sizes.items():
                number = store.patches_of(f"{name}@m:Note") + 1
                store.append([], [], [Patch(f"{name}@m:Note", 1, number, [whole("", bytes(size))])])

    commit(0, a=10, b=20)
    commit(0, c=30)
    commit(600, b=5, d=40)
    with closing(open_bucket(tmp_path / "look" / "ledger", url, looks=True)) as store:
        store.boot()
        assert list(store.newest_storages().items()) == [
            ("d@m:Note", 40), ("b@m:Note", 5), ("c@m:Note", 30), ("a@m:Note", 10)
        ]  # fmt: skip
        assert BucketSource(store).places(bytes_max=10) == ["b@m:Note", "a@m:Note"]
        assert BucketSource(store).below("a@m:Note") == 0


def test_ps_answers_where_the_bucket_cannot_be_read_from_here(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise BucketRefused(filled, "the keys have expired")

    monkeypatch.setattr("perdure.scenarios.commands.background.ColdLedger", str)  # as if it were served
    monkeypatch.setattr("perdure.actors.storages_in", refused)
    assert "work   not known, since the storages cannot be read from here: " in perdure("ps", "--data", filled).stdout
    assert "the keys have expired" in perdure_json("show", "--data", filled)["storages"]
    assert "the keys have expired" in perdure("upgrade", "--data", filled).stderr


def test_rest_reads_the_storages_in_it_and_says_nothing_of_the_cache(filled: str) -> None:
    with storages_in(data_directory(filled)) as source:
        assert everywhere("fibers", source, failed=False).storages == 1
    overview = {"supervisor": {"pid": 7, "node": "here"}, "unstartable": [], "elsewhere": []}
    found = served_findings(lambda *_: overview, data_directory(filled))
    assert [each.severity for each in found] == ["ok", "ok"], found
    assert found[0].what.startswith(f"{filled} is served by process 7")
    assert filled in found[1].advice


def test_it_is_called_by_its_url_and_its_logs_are_those_of_this_machine(filled: str) -> None:
    stopped = perdure("stop", "--data", filled).stdout
    assert stopped.startswith(f"Nothing that is known on this machine serves {filled}; ")
    for told in (stopped, str(perdure("kill", "supervisor", "--data", filled).exception)):
        assert "run this on a machine of that cluster: till-1" in told
    assert perdure("logs", "--data", filled).stderr.startswith("perdure: these are the logs of this machine alone")


def test_a_prefix_where_nothing_has_run_is_said_to_be_one(url: str) -> None:
    copy = f"{url}-copy"
    for arguments in (
        ["audit", "--data", url], ["doctor", "--data", url], ["backup", url], ["backup", url, "--list"],
        ["backup", url, "--delete", "a"], ["restore", url, copy], ["restore", url, copy, "--at", "2"],
    ):  # fmt: skip
        told = perdure(*arguments)
        assert told.exit_code != 0
        words = told.output + str(told.exception)
        assert f"there is no ledger in {url}: nothing has run there" in words, arguments
        assert "no object is there. See that bucket and prefix are right: perdure.json" in words, arguments


def test_a_mistyped_prefix_of_a_bucket_sends_nobody_to_another_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(*_: object) -> object:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", opened)
    with in_thread() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        url = s3.url("typo")
        told = str(perdure("restore", url, "copy").exception)
        assert told.startswith(f"target: there is no ledger in {url}: nothing has run there, and no replica")
        assert told.endswith(f"If backups lie there: {url!r} cannot be opened: Install s3fs to access S3")
        Bucket(url).puts_s(1)
        s3.weather(says={"NoSuchBucket": 1_000})
        assert "there is no such bucket" in str(perdure("restore", url, "copy").exception)


def test_objects_of_somebody_else_in_a_prefix_without_a_ledger_are_named(url: str, tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "cat.jpg").write_bytes(b"cat")
    for command in (["doctor", "--data", url], ["restore", url, "copy"]):
        assert "other objects are there, such as 'cat.jpg'" in str(perdure(*command).exception)


def test_the_moment_of_what_is_restored_is_said_and_none_of_the_future_is_taken(filled: str, tmp_path: Path) -> None:
    copy = str(tmp_path / "copy")
    ahead = str(perdure("restore", filled, copy, "--at", "2999-01-01T00:00").exception)
    assert ahead.startswith("at: 2999-01-01 00:00:00 UTC (")
    assert "on this machine) is in the future" in ahead
    assert "the newest in" in ahead
    assert "slot 2, of " in ahead
    assert "it has slots 1 to 2 (of 20" in str(perdure("restore", filled, copy, "--at", "7").exception)
    assert not Path(copy).exists()
    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S}"
    for number, options in enumerate(([], ["--at", "2"], ["--at", now])):
        told = perdure("restore", filled, f"{copy}-{number}", *options)
        assert told.exit_code == 0, told.output
        assert re.search(r"It is as it was at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\.", told.stdout)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("ftp://host/x", "no bucket that Perdure knows"),
        ("s3://", "names no bucket"),
        ("s3:///prefix", "names no bucket"),
        ("s3://b/a/../b", "stores read differently"),
        ("s3://b/a\nb", "stores read differently"),
        ("s3://b/p?region=x", "has options"),
        (Path("s3://b/p"), "give an address as a text"),
        ("GS:b/p", "two slashes"),
        ("http:/b/p", "two slashes"),
    ],
)
def test_a_url_that_no_bucket_has_is_refused_where_it_is_given(given: str | Path, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        Runtime(given)


def test_a_url_stands_for_a_cache_on_this_machine(url: str) -> None:
    data = data_directory(url)
    assert (data, bucket_of(data)) == (cache_of(url), url)
    assert bucket_of(data.parent) == ""


def test_one_bucket_has_one_cache_however_its_url_is_written(url: str) -> None:
    assert data_directory(f"{url}/") == data_directory(url.replace("file", "FILE")) == data_directory(url)


def test_keys_in_a_url_are_refused_before_they_are_written_anywhere(url: str, tmp_path: Path) -> None:
    assert url
    with pytest.raises(BadRequest, match="keys in it") as refused:
        Runtime("s3://AKIA123:hidden@bucket/prefix")
    assert "hidden" not in str(refused.value)
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_made_is_said_with_where_to_say_another_place(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "file"))
    with pytest.raises(BadRequest, match="PERDURE_CACHE"):
        data_directory(url)
