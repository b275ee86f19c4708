"""`perdure replica` on a directory that nothing serves."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import BadRequest, Runtime
from perdure.ledger import ReplicaSettings, replica_of
from perdure.scenarios.commands.shown import replica_words
from tests.s3_server import in_thread
from tests.scenarios.command import perdure, perdure_json

TOLD = {**ReplicaSettings("s3://b/p", 500, 2_000)._asdict(), "behind_ms": 1_500, "filled": True, "trouble": ""}


def test_a_directory_is_followed_from_its_next_start_on_or_no_more(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/bucket"
    assert perdure("replica", "--data", tmp_path).stdout == f"{tmp_path} is followed nowhere.\n"
    told = perdure("replica", url, "--lag-ms", "200", "--data", tmp_path)
    assert told.stdout == f"{url}, at most 2 s behind while it is served\n"
    assert replica_of(tmp_path) == ReplicaSettings(url, 200, 2_000)
    assert perdure_json("replica", "--data", tmp_path)["replica"]["lag_ms"] == 200
    assert perdure("replica", "--off", "--data", tmp_path).stdout == f"{tmp_path} is followed nowhere.\n"
    assert replica_of(tmp_path) is None


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["s3://b/p", "--off"], "off: name a bucket, or say --off"),
        (["./elsewhere"], "replica: './elsewhere' is no bucket that Perdure knows"),
        (["s3://b/p", "--lag-ms", "0"], "lag_ms: 0 is no number of milliseconds between 10 and 3,600,000"),
        (["s3://b/p", "--lag-ms", "5000"], "lag_max_ms: 2000 ms is less than lag_ms (5000 ms)"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(tmp_path: Path, words: list[str], refusal: str) -> None:
    assert refusal in str(perdure("replica", *words, "--data", tmp_path).exception)
    assert replica_of(tmp_path) is None


def test_a_directory_is_not_followed_into_a_bucket_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with in_thread() as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        url, data = s3.url("copy"), ("--data", tmp_path)
        s3.weather(says={"NoSuchBucket": 1_000})
        assert "there is no such bucket — create it" in str(perdure("replica", url, *data).exception)
        assert replica_of(tmp_path) is None
        s3.weather()
        assert perdure("replica", url, *data).stdout == f"{url}, at most 2 s behind while it is served\n"
        assert "PUT" not in s3.counts(), "nothing is written there"


def test_a_bucket_or_a_missing_directory_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_CACHE", str(tmp_path / "cache"))
    bucket = f"file://{tmp_path}/bucket"
    assert "is a bucket already" in str(perdure("replica", "s3://b/p", "--data", bucket).exception)
    assert "there is no directory" in str(perdure("replica", "s3://b/p", "--data", tmp_path / "missing").exception)
    with pytest.raises(BadRequest, match="only a directory is followed"):
        Runtime(bucket, replica="s3://b/p")
    with pytest.raises(BadRequest, match="only a directory is followed"):
        Runtime(tmp_path, replica="s3://b/p", may_start=False)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "s3://b/p, 1.5 s behind, at most 2 s"),
        ({"filled": False}, "s3://b/p, compared with the directory now; it may be further behind than 2 s"),
        ({"trouble": "no route"}, "s3://b/p, 1.5 s behind: no route"),
    ],
)
def test_how_far_the_bucket_is_behind_is_said_in_words(change: dict[str, object], words: str) -> None:
    assert replica_words({**TOLD, **change}) == words
