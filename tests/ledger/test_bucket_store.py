"""A ledger whose place of record is a bucket: whatever becomes of its directory, what was acknowledged is there."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import rmtree

import obstore
import pytest

from perdure.ledger.codec import unpack
from perdure.ledger.errors import BadRequest, LedgerDamaged, LedgerError, LedgerUnwritable
from perdure.ledger.slots import IDENTITY, Answer, Create, NoReply, Request
from perdure.ledger.store import bucket_store
from perdure.ledger.store.bucket import Bucket, BucketRefused
from perdure.ledger.store.bucket_store import BucketStore
from perdure.ledger.store.duckdb_file import DATABASE
from perdure.ledger.store.journal import SEGMENT
from perdure.ledger.store.store import FactRow, Record
from tests.kit import some

ROWS = 200


class Cloud(Bucket):
    """A bucket in memory, with weather: requests and answers that are lost, by a die with a seed."""

    def __init__(self, seed: int = 0, loss: float = 0.0) -> None:
        super().__init__("memory:///", pause=self.pause)
        self.pauses: list[float] = []
        self.die, self.loss = random.Random(seed), loss
        self.objects: dict[str, bytes] = {}
        self.asked = 0
        self.overwrites = False

    def pause(self, seconds: float) -> None:
        """Waits for nothing. After twenty pauses the weather is fine."""
        self.pauses.append(seconds)
        self.loss = 0.0 if len(self.pauses) == 20 and self.loss == 1.0 else self.loss

    def _answer(self, request: Request) -> Answer:
        self.asked += 1
        if self.die.random() < self.loss:
            raise NoReply("lost on the way there")
        answer = super()._answer(request)
        if isinstance(request, Create) and self.overwrites:
            return True
        if self.die.random() < self.loss:
            raise NoReply("lost on the way back")
        return answer

    def names(self, prefix: str = "") -> list[str]:
        return sorted(each["path"] for page in obstore.list(self._store, prefix) for each in page)

    def put(self, key: str, body: bytes) -> None:
        obstore.put(self._store, key, body)

    def remove(self, key: str) -> None:
        obstore.delete(self._store, key)

    def get(self, key: str) -> bytes:
        return bytes(obstore.get(self._store, key).bytes())


def fact(seq: int) -> FactRow:
    return FactRow(seq, 1_000 + seq, f"run {seq % 7}", None, "Happened", b"body" * (seq % 50))


def opened(path: Path, bucket: Bucket) -> BucketStore:
    store = BucketStore(path, bucket)
    store.boot()
    return store


def append(store: BucketStore, first: int, last: int) -> None:
    for seq in range(first, last + 1):
        store.append([fact(seq)], [])


def found(store: BucketStore) -> list[int]:
    return sorted(row.seq for at in range(7) for row in store.facts(f"run {at}"))


def lose(path: Path) -> None:
    """The machine is gone, with its disk."""
    rmtree(path)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_everything_acknowledged_is_there_on_another_machine(tmp_path: Path, *, checkpoints: bool) -> None:
    cloud = Cloud()
    store = opened(tmp_path / "a", cloud)
    append(store, 1, 40)
    if checkpoints:
        store.root_s = 0
        store.checkpoint(b"m", 30, [Record("agents", "x", True, ("h", 1), b"x")], [])
    append(store, 41, 60)
    other = opened(tmp_path / "b", cloud)
    assert found(other) == list(range(1, 61))
    append(other, 61, 62)
    with pytest.raises(LedgerError, match="another supervisor has begun"):
        append(store, 61, 61)
    assert found(opened(tmp_path / "c", cloud)) == list(range(1, 63))


def test_a_cache_that_is_there_is_brought_up_to_date_and_not_fetched(tmp_path: Path) -> None:
    cloud = Cloud()
    store = opened(tmp_path / "a", cloud)
    append(store, 1, ROWS)
    store.root_s = 0
    store.checkpoint(b"m", 1, [], [])
    store.close()
    elsewhere = opened(tmp_path / "b", cloud)
    append(elsewhere, ROWS + 1, ROWS + 3)
    cloud.asked = 0
    again = opened(tmp_path / "a", cloud)
    assert found(again) == list(range(1, ROWS + 4))
    assert cloud.asked == 7, "identity, list; roots, slots, roots, fence, roots"


def test_of_a_cache_of_an_earlier_root_what_has_not_changed_is_not_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket_store, "PIECE", 16 << 10)
    cloud = Cloud()
    store = opened(tmp_path / "a", cloud)
    store.root_s = 0
    append(store, 1, ROWS)
    store.checkpoint(b"m", 1, [], [])
    store._release()  # noqa: SLF001 - as if it were killed
    elsewhere = opened(tmp_path / "b", cloud)
    elsewhere.root_s = 0
    append(elsewhere, ROWS + 1, ROWS + 1)
    elsewhere.checkpoint(b"m", 2, [], [])
    elsewhere.close()
    pieces = len(unpack(unpack(cloud.get(cloud.names("root")[-1])[:-16])[5])[2])
    cloud.asked = 0
    again = opened(tmp_path / "a", cloud)
    assert 0 < cloud.asked - 8 < pieces
    assert found(again) == list(range(1, ROWS + 2))
    assert (tmp_path / "a" / DATABASE).read_bytes() == (tmp_path / "b" / DATABASE).read_bytes()


def test_a_root_is_due_after_so_many_facts_that_whoever_begins_would_read_them_for_long(tmp_path: Path) -> None:
    cloud = Cloud()
    store = opened(tmp_path / "a", cloud)
    store.root_facts = 30
    roots = []
    for first in range(1, 80, 20):
        append(store, first, first + 19)
        store.checkpoint(b"m", first, [], [])
        roots.append(len(cloud.names("root")))
    assert roots == [0, 1, 1, 2]
    assert found(opened(tmp_path / "b", cloud)) == list(range(1, 81))


def test_when_a_piece_cannot_be_read_none_is_written_any_more(tmp_path: Path) -> None:
    begun: list[int] = []

    def job(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise LedgerDamaged("it", "is damaged")
        return number

    bucket = Bucket(f"file://{tmp_path}")
    assert bucket.at_once([partial(job, at) for at in (1, 2, 4)]) == [1, 2, 4]
    with pytest.raises(LedgerDamaged):
        bucket.at_once([partial(job, at) for at in range(1_000)])
    count = len(begun)
    bucket.at_once([partial(job, 4)] * 100)
    assert len(begun) == count + 100


@pytest.mark.parametrize("harm", ["torn", "gone", "strange"])
def test_a_cache_that_cannot_be_used_is_dropped(tmp_path: Path, harm: str) -> None:
    cloud = Cloud()
    store = opened(tmp_path / "a", cloud)
    append(store, 1, 20)
    store.close()
    if harm == "torn":
        for each in (tmp_path / "a").glob(f"{SEGMENT}*"):
            each.write_bytes(b"?" * 100)
    elif harm == "gone":
        (tmp_path / "a" / "ledger.db").unlink()
    else:
        lose(tmp_path / "a")
        other = opened(tmp_path / "a", Cloud())
        append(other, 1, 5)
        other.close()
    assert found(opened(tmp_path / "a", cloud)) == list(range(1, 21))


def test_a_full_cache_disk_is_named_and_what_was_acknowledged_is_there_when_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    cloud = Cloud()
    store = opened(tmp_path / "a", cloud)
    append(store, 1, 20)
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(os, "pwritev", full)
        meanwhile.setattr(os, "pwrite", full)
        for _ in range(2):
            with pytest.raises(LedgerUnwritable, match="the disk is full"):
                append(store, 21, 21)
        store.close()
    assert found(opened(tmp_path / "a", cloud))[:20] == list(range(1, 21))


def test_a_snapshot_names_again_what_has_not_changed_and_what_is_not_kept_is_deleted(tmp_path: Path) -> None:
    cloud = Cloud()
    store = opened(tmp_path / "a", cloud)
    store.root_s = store.keep_s = 0
    append(store, 1, ROWS)
    store.checkpoint(b"m", 1, [], [])
    first = set(cloud.names("snapshot"))
    append(store, ROWS + 1, ROWS + 2)
    store.checkpoint(b"m", 2, [], [])
    second = set(cloud.names("snapshot"))
    assert first & second or len(second) == 1
    assert len(cloud.names("journal")) == 3, "of the fence, and of what came after the first root"
    assert len(cloud.names("root")) == 2
    assert found(opened(tmp_path / "b", cloud)) == list(range(1, ROWS + 3))


@pytest.mark.parametrize("seed", some(2, range(6)))
def test_where_requests_and_answers_are_lost_nothing_is_lost_and_nothing_is_there_twice(
    tmp_path: Path, seed: int
) -> None:
    cloud, die = Cloud(seed, loss=0.2), random.Random(seed)
    done = 0
    for life in range(5):
        path = tmp_path / f"machine {die.randrange(2)}"
        store = opened(path, cloud)
        assert found(store) == list(range(1, done + 1))
        store.root_s = die.choice([0, 600])
        for _ in range(die.randrange(20)):
            done += 1
            append(store, done, done)
            if die.random() < 0.2:
                store.checkpoint(b"m", done, [], [])
        if die.random() < 0.5:
            store.close()
        else:
            store._release()  # noqa: SLF001 - as if it were killed
        if life % 2:
            lose(path)
    assert found(opened(tmp_path / "last", cloud)) == list(range(1, done + 1))


# ---------------------------------------------------------------- what is refused


def _of_somebody_else(cloud: Cloud) -> None:
    cloud.put("photos/cat.jpg", b"cat")


def _later(cloud: Cloud) -> None:
    cloud.put(IDENTITY, b"\x92\x63\xa1x")


def _overwriting(cloud: Cloud) -> None:
    cloud.overwrites = True


@pytest.mark.parametrize(
    ("harm", "kind", "words"),
    [
        (_of_somebody_else, BadRequest, "objects of somebody else"),
        (_later, BucketRefused, "format 99"),
        (_overwriting, BucketRefused, "overwrites an object"),
    ],
)
def test_a_prefix_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, harm: Callable[[Cloud], None], kind: type[Exception], words: str
) -> None:
    cloud = Cloud()
    harm(cloud)
    for _ in range(2):
        with pytest.raises(kind, match=words):
            opened(tmp_path / "a", cloud)
    assert not cloud.names("journal")


@pytest.mark.parametrize("prefix", ["journal", "snapshot"])
def test_a_damaged_object_is_named(tmp_path: Path, prefix: str) -> None:
    cloud = Cloud()
    store = opened(tmp_path / "a", cloud)
    append(store, 1, 5)
    if prefix == "snapshot":
        store.root_s = 0
        store.checkpoint(b"m", 1, [], [])
    key = cloud.names(prefix)[-1]
    body = bytearray(cloud.get(key))
    body[len(body) // 2] ^= 1
    cloud.put(key, bytes(body))
    before = cloud.names()
    with pytest.raises(LedgerDamaged, match=key):
        opened(tmp_path / "b", cloud)
    assert [each for each in cloud.names() if each not in before] == (
        [] if prefix == "journal" else [cloud.names("journal")[-1]]
    )


def test_a_bucket_that_does_not_answer_at_the_opening_is_told(tmp_path: Path) -> None:
    cloud = Cloud(loss=1.0)
    with pytest.raises(BucketRefused, match="check the address"):
        opened(tmp_path / "a", cloud)


def test_what_is_asked_waits_until_the_bucket_is_back(tmp_path: Path) -> None:
    cloud = Cloud()
    store = opened(tmp_path / "a", cloud)
    cloud.loss = 1.0
    append(store, 1, 1)
    assert (len(cloud.pauses), cloud.trouble, cloud.unanswered_s()) == (20, "", 0)
    longest = [min(0.05 * 2**at, 2) for at in range(20)]
    assert all(most / 2 <= pause <= most for pause, most in zip(cloud.pauses, longest, strict=True))


@pytest.mark.parametrize("url", ["s3:/bad", "ftp://x/y", "s3://", "nonsense"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="data"):
        Bucket(url)


def test_a_directory_can_stand_for_a_bucket(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    store = opened(tmp_path / "a", Bucket(url))
    append(store, 1, 9)
    assert found(opened(tmp_path / "b", Bucket(url))) == list(range(1, 10))
