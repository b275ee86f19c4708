"""A ledger that is brought into an empty prefix of a bucket, or out of one."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from shutil import copytree

import pytest

from perdure.ledger import CODE, restore
from perdure.ledger.bucket_history import Moment
from perdure.ledger.errors import BadRequest, LedgerDamaged, LedgerUnwritable
from perdure.ledger.maintenance import bucket_restoration
from perdure.ledger.maintenance.bucket_restoration import (
    restore_directory_to_bucket,
    restore_to_directory,
    seed_from_directory,
)
from perdure.ledger.slots import Answer, Create, Request
from perdure.ledger.storage.file_disk import place_of
from perdure.ledger.store.bucket import BucketRefused
from perdure.ledger.store.bucket_store import BucketStore
from perdure.ledger.store.store import Boot
from tests.ledger.directories import lived, recorded, written
from tests.ledger.test_bucket_store import Cloud, append, found, opened

ANNA, BERT = "anna@m:T", "bert@m:T"
LINE = "name:n\tm:T\tx"


@pytest.fixture(scope="module", params=["logs", "databases"])
def whole_data(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    """A directory with two agents that have written, and code."""
    data, tables = tmp_path_factory.mktemp("whole"), request.param == "databases"
    anna, bert = written(data, ANNA, 1, "a", "b", tables=tables), written(data, BERT, 2, "c", tables=tables)
    recorded(data, *lived(ANNA, 1, anna), snapshot=True)
    recorded(data, *lived(BERT, 2, bert))
    (data / "code").mkdir()
    (data / "code" / "cell.py").write_text("x = 1\n")
    (data / "code" / "types.txt").write_text(f"{LINE}\n")
    return data


@pytest.fixture
def data(whole_data: Path, tmp_path: Path) -> Path:
    return copytree(whole_data, tmp_path / "data")


def contents(data: Path) -> dict[str, bytes]:
    return {str(each.relative_to(data)): each.read_bytes() for each in data.rglob("*") if each.is_file()}


def booted(path: Path, cloud: Cloud) -> tuple[BucketStore, Boot]:
    store = BucketStore(path, cloud)
    return store, store.boot()


def test_a_directory_goes_on_in_an_empty_prefix(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_restoration, "_GROUP", 1)
    cloud, before = Cloud(), contents(data)
    assert seed_from_directory(data, cloud, print) == 2
    after = contents(data)
    assert {name: body for name, body in after.items() if name in before} == before
    store, boot = booted(tmp_path / "cache", cloud)
    assert restore(boot).seq == 4
    for agent in (ANNA, BERT):
        image = store.storage(agent)
        assert image is not None
        assert (image.number, image.files[""]) == (1, (data / "agents" / place_of(agent)).read_bytes())
    code = store.storage(CODE)
    assert code is not None
    assert sorted(code.files.values()) == sorted([b"x = 1\n", LINE.encode()])
    append(store, 5, 6)
    assert found(opened(tmp_path / "elsewhere", cloud)) == [5, 6]


def test_a_prefix_in_which_a_seed_was_interrupted_begins_with_the_next_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = Cloud()

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(bucket_restoration._Seed, "_announced", dies)  # noqa: SLF001
        with pytest.raises(KeyboardInterrupt):
            seed_from_directory(data, cloud, print)
    with pytest.raises(BadRequest, match="has not ended"):
        opened(tmp_path / "a", cloud)
    assert seed_from_directory(data, cloud, print) == 2
    assert opened(tmp_path / "a", cloud).storages_of(ANNA) == [ANNA]


def test_a_prefix_that_has_something_is_not_restored_into(data: Path, tmp_path: Path) -> None:
    used, seeded, strange = Cloud(), Cloud(), Cloud()
    append(opened(tmp_path / "a", used), 1, 1)
    seed_from_directory(data, seeded, print)
    strange.put("photos/cat.jpg", b"cat")
    for cloud in (used, seeded, strange):
        before = cloud.names()
        with pytest.raises(BadRequest, match=r"not empty|somebody else"):
            seed_from_directory(data, cloud, print)
        assert cloud.names() == before


def test_a_bucket_that_falls_silent_amid_a_restore_is_said_and_it_is_made_again(data: Path, tmp_path: Path) -> None:
    cloud = Silent()
    with pytest.raises(BucketRefused, match="then restore into it again, which begins anew"):
        seed_from_directory(data, cloud, print)
    cloud.creates, cloud.loss = 0, 0.0
    assert seed_from_directory(data, cloud, print) == 2
    assert opened(tmp_path / "a", cloud).storages_of(ANNA) == [ANNA]


@pytest.mark.parametrize("harm", ["full disk", "lost piece"])
def test_of_a_restore_that_fails_nothing_is_left(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    url, copy = f"file://{tmp_path}/bucket", tmp_path / "copy"
    restore_directory_to_bucket(data, url)
    if harm == "full disk":
        monkeypatch.setattr(bucket_restoration, "_put", full)
    else:
        next(each for each in (tmp_path / "bucket" / "snapshot").rglob("*") if each.is_file()).unlink()
    with pytest.raises(
        (LedgerUnwritable, LedgerDamaged), match=r"No space left|pieces of the last snapshot are missing"
    ):
        restore_to_directory(url, copy, Moment(), replace=False)
    assert not [*tmp_path.glob("copy*")]


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Silent(Cloud):
    """A bucket that creates five objects, and then answers no more."""

    creates = 5

    def _answer(self, request: Request) -> Answer:
        if isinstance(request, Create) and self.creates:
            self.creates -= 1
            if not self.creates:
                self.loss = 1.0
                self.creates = 1
        return super()._answer(request)

    def pause(self, seconds: float) -> None:
        """Waits for nothing."""


def test_of_two_seeds_at_once_the_later_one_is_refused(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = Cloud()
    first = bucket_restoration._Seed._announced  # noqa: SLF001

    def overtaken(self: bucket_restoration._Seed, *given: object) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(bucket_restoration._Seed, "_announced", first)  # noqa: SLF001
            seed_from_directory(data, cloud, print)
        return first(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(bucket_restoration._Seed, "_announced", overtaken)  # noqa: SLF001
    with pytest.raises(BadRequest, match="not empty"):
        seed_from_directory(data, cloud, print)
    assert opened(tmp_path / "a", cloud).storages_of(ANNA) == [ANNA]
