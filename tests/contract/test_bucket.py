"""What Perdure asks of a bucket: the same is asked of a directory, of the tests' own S3, and of the bucket that a variable names."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from urllib.request import urlopen

import pytest

from perdure.ledger.slots import AFTER_ALL, Answer, Create, Delete, Names, Newest, Procedure, Request, get
from perdure.ledger.store.bucket import Bucket
from tests import named_bucket
from tests.s3_server import in_thread

AT_ONCE = 6


@pytest.fixture(scope="module", params=["directory", "s3", *(["named"] if named_bucket.NAMED else [])])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an empty prefix."""
    if request.param == "named":
        with named_bucket.fresh_prefix() as url:
            yield url
    elif request.param == "directory":
        yield f"file://{tmp_path_factory.mktemp('bucket')}"
    else:
        with in_thread() as s3, pytest.MonkeyPatch.context() as patch:
            for name, value in s3.environment.items():
                patch.setenv(name, value)
            yield s3.url("prefix")


@pytest.fixture
def bucket(place: str, tmp_path: Path) -> Bucket:
    return Bucket(f"{place}/{tmp_path.name}")


def asked(bucket: Bucket, request: Request) -> Answer:
    def procedure() -> Procedure[Answer]:
        return (yield request)

    return bucket.run(procedure(), tries_max=3)


def test_what_was_created_is_read_and_is_not_created_again(bucket: Bucket) -> None:
    assert asked(bucket, Create("journal/1", b"one")) is True
    assert asked(bucket, Create("journal/1", b"two")) is False
    assert bucket.run(get(["journal/1", "journal/2"])) == [b"one", None]


def test_what_was_deleted_is_missing_and_may_be_created_again(bucket: Bucket) -> None:
    for body in (b"one", b"two"):
        assert asked(bucket, Create("a", body)) is True
        assert bucket.run(get(["a"])) == [body]
        asked(bucket, Delete(("a",)))
        assert bucket.run(get(["a"])) == [None]
        assert asked(bucket, Names("", AFTER_ALL)) == []


def test_of_many_that_create_an_object_at_once_no_two_have_created_it(
    bucket: Bucket, place: str, tmp_path: Path
) -> None:
    together = Barrier(AT_ONCE)
    buckets = [bucket, *(Bucket(f"{place}/{tmp_path.name}") for _ in range(AT_ONCE - 1))]

    def created(number: int) -> list[Answer]:
        found = []
        for at in range(30):
            together.wait()
            found.append(asked(buckets[number], Create(f"{at:02}", b"%d" % number * 1_000)))
        return found

    with ThreadPoolExecutor(AT_ONCE) as lives:
        rounds = list(zip(*lives.map(created, range(AT_ONCE)), strict=True))
    bodies = bucket.run(get([f"{at:02}" for at in range(len(rounds))]))
    for each, body in zip(rounds, bodies, strict=True):
        owner = int((body or b"")[:1])  # it may have been told that its object exists: by a second copy of its request
        assert {number for number, has_created in enumerate(each) if has_created} <= {owner}


def test_names_are_listed_in_order_whatever_their_characters(bucket: Bucket, place: str, tmp_path: Path) -> None:
    keys = sorted(f"k/{name}" for name in ("-", "0", "Z", "a b", "a+b=c&d", "100%", "x%20y", "~", "ü日本"))
    for key in keys:
        asked(bucket, Create(key, key.encode()))
    asked(bucket, Create("later/1", b""))
    asked(Bucket(f"{place}/{tmp_path.name}-beside"), Create("k/1", b""))
    assert bucket.run(get(keys)) == [key.encode() for key in keys]
    assert sorted(asked(bucket, Names("k/", "k/ü日本"))) == keys  # type: ignore[arg-type]
    assert sorted(asked(bucket, Names("k/", "k/Z"))) == [key for key in keys if key <= "k/Z"]  # type: ignore[arg-type]
    assert asked(bucket, Newest("k/")) == keys[-1]
    assert asked(bucket, Newest("none/")) == ""


def test_more_than_fit_a_page_are_listed_and_deleted_although_some_are_missing(bucket: Bucket) -> None:
    keys = [f"journal/{number:06}" for number in range(1_010)]
    with ThreadPoolExecutor(AT_ONCE) as many:
        list(many.map(lambda key: asked(bucket, Create(key, b"x")), keys))
    assert sorted(asked(bucket, Names("journal/", AFTER_ALL)) or "") == keys
    assert asked(bucket, Newest("journal/")) == keys[-1]
    missing = tuple(f"journal/{number:06}-missing" for number in range(50))
    asked(bucket, Delete((*missing, *keys[1:])))
    assert asked(bucket, Names("", AFTER_ALL)) == keys[:1]


def test_who_has_no_keys_reads_by_signed_urls_where_there_are_any(bucket: Bucket) -> None:
    keys = [f"storage/{name}" for name in ("a b", "ü", "100%")]
    for key in keys:
        asked(bucket, Create(key, key.encode()))
    found = []
    for url in bucket.signed(keys):
        with urlopen(url) as answer:  # noqa: S310 - the bucket's own
            found.append(answer.read())
    assert found in ([], [key.encode() for key in keys])
