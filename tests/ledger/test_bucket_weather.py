"""A ledger in a bucket over HTTP: what is not there, not allowed or somebody else's is refused in words, and all weather is waited out."""

from __future__ import annotations

import http.client
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit

import obstore
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError, UnauthenticatedError

from perdure.ledger.errors import UNREACHABLE_S, BadRequest, BucketUnreachable, LedgerDamaged, LedgerError
from perdure.ledger.slots import IDENTITY, Answer, Request, delete, get, slot_key
from perdure.ledger.store.bucket import Bucket, BucketRefused
from perdure.ledger.store.bucket_store import BucketStore
from perdure.ledger.store.store import FactRow
from tests.s3_server import S3, in_process, in_thread

WARM = 20
"""Requests until a bucket knows what is usual."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with in_process() as s3:
        yield s3


@pytest.fixture
def s3(server: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3]:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    yield server
    server.weather()
    server.settle()


@pytest.fixture
def url(s3: S3, tmp_path: Path) -> str:
    return s3.url(tmp_path.name)


class Waiting(Bucket):
    """A bucket on a clock that only its pauses move. At each it notes how long there was no answer, and why."""

    def __init__(self, url: str, **given: Any) -> None:
        super().__init__(url, pause=self.pause, now_s=lambda: self.at_s, **given)
        self.at_s = 0.0
        self.noted: list[tuple[float, str]] = []

    def pause(self, seconds: float) -> None:
        self.at_s += seconds
        self.noted.append((self.unanswered_s(), self.trouble))

    def names(self, prefix: str = "") -> list[str]:
        return sorted(each["path"] for page in obstore.list(self._store, prefix) for each in page)

    def put(self, key: str, body: bytes) -> None:
        obstore.put(self._store, key, body, use_multipart=False)

    def read(self, *keys: str) -> list[bytes | None]:
        return self.run(get(keys))

    def delete(self, key: str) -> None:
        obstore.delete(self._store, key)


def opened(path: Path, bucket: Bucket) -> BucketStore:
    store = BucketStore(path, bucket)
    store.boot()
    return store


def append(store: BucketStore, first: int, last: int) -> None:
    for seq in range(first, last + 1):
        store.append([FactRow(seq, seq, "run", None, "Happened", b"body")], [])


def found(store: BucketStore) -> list[int]:
    return [row.seq for row in store.facts("run")]


def happened(s3: S3, before: dict[str, int]) -> dict[str, int]:
    """The requests since then by their verb, and the refusals by their code."""
    changes = {
        what: count - before.get(what, 0) for what, count in s3.counts().items() if what not in {"bytes", "objects"}
    }
    return {what: change for what, change in changes.items() if change}


# ---------------------------------------------------------------- weather is waited out


WEATHER: dict[str, dict[str, Any]] = {
    "slow": {"put_ms": 3, "get_ms": 1},
    "requests are lost": {"lost_before": 9},
    "answers are lost": {"lost_after": 9},
    "requests take effect late": {"late": 9, "late_s": 0.02},
    "conflicts": {"says": {"ConditionalRequestConflict": 9}, "verbs": "PUT"},
    "throttled, and broken inside": {"says": {"SlowDown": 6, "TooManyRequests": 3, "InternalError": 9}},
    "lists are old": {"stale_list": True},
    "all at once": {"lost_before": 0.1, "lost_after": 0.1, "late": 0.1, "late_s": 0.02, "says": {"SlowDown": 0.1}},
}


@pytest.mark.parametrize("weather", WEATHER)
def test_in_all_weather_what_was_acknowledged_is_there_once(s3: S3, url: str, tmp_path: Path, weather: str) -> None:
    store = opened(tmp_path / "a", Waiting(url))
    s3.weather(**WEATHER[weather])
    append(store, 1, 10)
    store.root_s = 0
    store.checkpoint(b"m", 5, [], [])
    append(store, 11, 14)
    other = opened(tmp_path / "b", Waiting(url))
    append(other, 15, 16)
    with pytest.raises(LedgerError, match="another supervisor has begun"):
        append(store, 15, 15)
    s3.weather()
    assert found(opened(tmp_path / "c", Waiting(url))) == list(range(1, 17))


def test_of_a_request_that_takes_effect_long_after_it_was_given_up_there_is_one_effect(
    s3: S3, url: str, tmp_path: Path
) -> None:
    store = opened(tmp_path / "a", Bucket(url))
    before = s3.counts()
    s3.weather(late=1, late_s=0.05, says={"SlowDown": 3}, verbs="PUT")
    append(store, 1, 1)
    assert happened(s3, before) == {"PUT": 5, "SlowDown": 3, "GET": 1, "PreconditionFailed": 1}, (
        "it was there, and ours"
    )
    assert found(opened(tmp_path / "b", Bucket(url))) == [1]


def test_a_conflict_says_nothing_of_what_is_there_and_is_asked_again_after_a_pause(
    s3: S3, url: str, tmp_path: Path
) -> None:
    bucket = Waiting(url)
    store = opened(tmp_path / "a", bucket)
    before = s3.counts()
    s3.weather(says={"ConditionalRequestConflict": 2}, verbs="PUT")
    append(store, 1, 1)
    assert happened(s3, before) == {"PUT": 3, "ConditionalRequestConflict": 2}
    assert len(bucket.noted) == 2


@pytest.mark.parametrize("code", ["ExpiredToken", "AccessDenied", "RequestTimeTooSkewed", "NoSuchBucket", "SlowDown"])
def test_what_comes_while_a_supervisor_is_at_work_is_waited_out_and_told(
    s3: S3, url: str, tmp_path: Path, code: str
) -> None:
    bucket = Waiting(url)
    store = opened(tmp_path / "a", bucket)
    s3.weather(says={code: 9})
    append(store, 1, 1)
    times, troubles = [at_s for at_s, _ in bucket.noted], [trouble for _, trouble in bucket.noted]
    assert times == sorted(times)
    assert times[0] < 0.1
    assert times[-1] > UNREACHABLE_S, "from when on new work is refused"
    assert len(times) == 9
    assert all(code in trouble and "\n" not in trouble for trouble in troubles)
    assert (bucket.unanswered_s(), bucket.trouble) == (0, "")
    assert found(opened(tmp_path / "b", bucket)) == [1]


def test_a_commit_that_waits_is_told_although_others_are_answered(s3: S3, url: str, tmp_path: Path) -> None:
    asked = []

    class Reading(Waiting):
        def pause(self, seconds: float) -> None:
            super().pause(seconds)
            with ThreadPoolExecutor(1) as another:
                asked.append((another.submit(self.read, IDENTITY).result() != [None], self.unanswered_s() > 0))

    store = opened(tmp_path / "a", Reading(url))
    s3.weather(says={"SlowDown": 3}, verbs="PUT")
    append(store, 1, 1)
    assert asked == [(True, True)] * 3


def test_a_request_without_an_answer_is_told_while_it_is_on_its_way(s3: S3, url: str, tmp_path: Path) -> None:
    bucket = Bucket(url)
    store = opened(tmp_path / "a", bucket)
    assert bucket.unanswered_s() == 0
    s3.weather(down="hangs")
    with ThreadPoolExecutor(1) as other:
        appended = other.submit(append, store, 1, 1)
        while not bucket.unanswered_s() > 0.01:
            pass
        s3.weather()
        appended.result()
    assert bucket.unanswered_s() == 0


def test_the_words_of_an_outage_say_what_since_when_and_what_becomes_of_work() -> None:
    words = str(BucketUnreachable("s3://b/p", 7.4, "503 SlowDown", 1_000))
    for each in ("s3://b/p has not answered for 7 s (503 SlowDown)", "goes on by itself", "retry in 1000 ms"):
        assert each in words


def test_while_the_bucket_is_gone_the_journal_has_no_end(s3: S3, url: str, tmp_path: Path) -> None:
    """Its 404 is not that of an object: a life that took it for one would put its fence over commits."""
    store = opened(tmp_path / "a", Waiting(url))
    append(store, 1, 3)
    bucket = Waiting(url)
    s3.weather(says={"NoSuchBucket": 2}, only="journal", verbs="GET")
    assert bucket.read(slot_key(2)) == store._bucket.run(get([slot_key(2)]))  # noqa: SLF001
    assert len(bucket.noted) == 2


def test_while_the_bucket_is_gone_nothing_is_taken_for_deleted(s3: S3, url: str) -> None:
    bucket = Waiting(url)
    bucket.put("a", b"")
    s3.weather(says={"NoSuchBucket": 2}, verbs="POST")
    bucket.run(delete(["a"]))
    assert len(bucket.noted) == 2
    assert bucket.names() == []


def test_a_bucket_that_dies_and_comes_back_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_thread(tmp_path / "objects") as s3:
        for name, value in s3.environment.items():
            monkeypatch.setenv(name, value)
        store = opened(tmp_path / "a", Bucket(s3.url("p")))
        append(store, 1, 3)
    with ThreadPoolExecutor(1) as other:
        appended = other.submit(append, store, 4, 5)
        while not store._bucket.trouble:  # noqa: SLF001
            pass
        with in_thread(tmp_path / "objects", s3.port):
            appended.result()
            assert found(opened(tmp_path / "b", Bucket(s3.url("p")))) == list(range(1, 6))


# ---------------------------------------------------------------- what is late is asked a second time


def warm(store: BucketStore) -> None:
    bucket = store._bucket  # noqa: SLF001
    append(store, 1, WARM)
    for _ in range(WARM):
        bucket.run(get([IDENTITY]))


def test_a_commit_that_is_late_is_sent_a_second_time_and_is_there_once(s3: S3, url: str, tmp_path: Path) -> None:
    store = opened(tmp_path / "a", Bucket(url))
    warm(store)
    before = s3.counts()
    s3.weather(stall=1, stall_s=0.8, verbs="PUT")
    append(store, WARM + 1, WARM + 1)
    assert happened(s3, before) == {"PUT": 2}, "the first has no effect yet"
    append(store, WARM + 2, WARM + 2)
    store.close()
    assert found(opened(tmp_path / "b", Bucket(url))) == list(range(1, WARM + 3))


def test_an_object_that_is_late_is_asked_for_a_second_time(s3: S3, url: str, tmp_path: Path) -> None:
    store = opened(tmp_path / "a", Bucket(url))
    warm(store)
    before = s3.counts()
    s3.weather(stall=2, stall_s=0.8, verbs="GET")
    bodies = store._bucket.run(get([IDENTITY, slot_key(1), slot_key(99)]))  # noqa: SLF001
    assert [body is None for body in bodies] == [False, False, True]
    assert 5 <= happened(s3, before)["GET"] <= 6, "a busy machine makes the third late"


def test_of_two_copies_the_one_that_says_something_counts(s3: S3, url: str, tmp_path: Path) -> None:
    bucket = Waiting(url)
    store = opened(tmp_path / "a", bucket)
    warm(store)
    s3.weather(stall=1, stall_s=0.8, verbs="PUT")
    create, sent = bucket._create, []  # noqa: SLF001

    def lost(key: str, body: bytes) -> bool:
        sent.append(key)
        if len(sent) == 2:
            raise ConnectionError
        return create(key, body)

    bucket._create = lost  # type: ignore[method-assign] # noqa: SLF001
    append(store, WARM + 1, WARM + 1)
    assert sent == [slot_key(WARM + 2)] * 2
    assert not bucket.noted, "it was not sent a third time"


def test_who_does_not_know_yet_what_is_usual_waits(s3: S3, url: str, tmp_path: Path) -> None:
    store = opened(tmp_path / "a", Bucket(url))
    append(store, 1, 5)
    before = s3.counts()
    s3.weather(stall=1, stall_s=0.2, verbs="PUT")
    append(store, 6, 6)
    assert happened(s3, before) == {"PUT": 1}


# ---------------------------------------------------------------- what is refused at the opening


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such bucket": ({"says": {"NoSuchBucket": True}}, "there is no such bucket — create it"),
    "read-only": ({"says": {"AccessDenied": True}, "verbs": "PUT"}, "the keys may not create objects: it is read-only"),
    "not readable": ({"says": {"AccessDenied": True}}, "the keys may not read objects — allow s3:GetObject"),
    "no right to list": (
        {"says": {"AccessDenied": True}, "verbs": "LIST"},
        "the keys may not list objects — .*s3:ListBucket",
    ),
    "an hour behind": ({"clock_s": 3_600}, "the clock of this machine differs .* — set the clock"),
    "an hour ahead": ({"clock_s": -3_600}, "the clock of this machine differs .* — set the clock"),
    "unknown keys": ({"says": {"InvalidAccessKeyId": True}}, "it does not know the keys — set AWS_ACCESS_KEY_ID"),
    "wrong secret": ({"says": {"SignatureDoesNotMatch": True}}, "it does not know the keys — set AWS_ACCESS_KEY_ID"),
    "expired keys": ({"says": {"ExpiredToken": True}}, "the keys have expired — renew them"),
    "another region": ({"says": {"AuthorizationHeaderMalformed": True}}, "it is in another region — set AWS_REGION"),
    "a redirect": ({"says": {"PermanentRedirect": True}}, "it is in another region — set AWS_REGION"),
    "no conditions": ({"says": {"NotImplemented": True}, "verbs": "PUT"}, "it does not know `If-None-Match"),
    "overwrites": ({"overwrites": True}, "it overwrites an object that is to be created once"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_no_repetition_mends_is_refused_at_once_and_in_words(s3: S3, url: str, tmp_path: Path, what: str) -> None:
    weather, words = REFUSED[what]
    bucket = Waiting(url)
    s3.weather(**weather)
    with pytest.raises(BucketRefused, match=f"{url}: .*{words}"):
        opened(tmp_path / "a", bucket)
    assert not bucket.noted, "without a pause"
    s3.weather()
    assert not bucket.names()


METADATA = "Error performing GET http://169.254.169.254/"
SAID: dict[str, tuple[str, Exception, str]] = {
    "no keys for S3": ("s3", GenericError(METADATA), "no keys were found, .* — set AWS_ACCESS_KEY_ID"),
    "no keys for Azure": ("az", GenericError(METADATA), "no keys were found, .* — set AZURE_STORAGE_ACCOUNT_NAME"),
    "no keys for Google": ("gs", GenericError(METADATA), "no keys were found, .* — set GOOGLE_APPLICATION_CREDENTIALS"),
    "Azure's one sentence": (
        "az",
        PermissionDeniedError("<Code>AuthenticationFailed</Code><Message>Server failed to authenticate the request."),
        "the keys are wrong or have expired, or the clock .* is off — set AZURE_STORAGE_ACCOUNT_NAME .* and the clock",
    ),
    "no role in Azure": (
        "az",
        PermissionDeniedError("<Code>AuthorizationPermissionMismatch</Code>"),
        "the keys may not read objects — give them the role Storage Blob Data Contributor",
    ),
    "no container": ("az", FileNotFoundError("<Code>ContainerNotFound</Code>"), "there is no such bucket"),
    "a container that goes": ("az", GenericError("<Code>ContainerBeingDeleted</Code>"), "there is no such bucket"),
    "a name of no container": ("az", GenericError("<Code>InvalidResourceName</Code>"), "no bucket may have that name"),
    "Google's refusal to begin": (
        "gs",
        GenericError('{"error":"invalid_grant","error_description":"Invalid JWT Signature."}'),
        "the keys are wrong or have expired, or the clock",
    ),
    "a token that has expired": ("gs", UnauthenticatedError("401 Unauthorized"), "the keys are wrong or have expired"),
    "no role at Google": (
        "gs",
        PermissionDeniedError("<Code>AccessDenied</Code>"),
        "the keys may not read objects — allow storage.objects.get",
    ),
}


@pytest.mark.parametrize("what", SAID)
def test_what_is_refused_is_said_in_the_words_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for name, value in (("ACCOUNT_NAME", "account"), ("ACCOUNT_KEY", "a2V5")):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    scheme, problem, words = SAID[what]

    class Refusing(Waiting):
        def _answer(self, request: Request) -> Answer:
            raise problem

    bucket = Refusing(f"{scheme}://bucket/prefix")
    with pytest.raises(BucketRefused, match=words):
        opened(tmp_path / "a", bucket)
    assert not bucket.noted, "without a pause"


@pytest.mark.parametrize(
    ("url", "variable"),
    [("s3://b/p", "AWS_ENDPOINT_URL"), ("gs://b/p", "GOOGLE_BASE_URL"), ("az://b/p", "AZURE_STORAGE_ENDPOINT")],
)
def test_an_endpoint_that_is_no_address_is_refused(url: str, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "127.0.0.1:9000")
    with pytest.raises(BadRequest, match=f"the variable {variable} is '127.0.0.1:9000'; write http:// or https://"):
        Bucket(url)


def test_what_is_wrong_in_the_variables_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(BadRequest, match=r"data: 'gs://b/p' cannot be opened: .*/nowhere/key.json") as refused:
        Bucket("gs://b/p")
    assert "\n" not in str(refused.value)


def test_a_prefix_that_became_read_only_is_refused_by_its_next_life(s3: S3, url: str, tmp_path: Path) -> None:
    opened(tmp_path / "a", Waiting(url)).close()
    s3.weather(says={"AccessDenied": True}, verbs="PUT")
    with pytest.raises(BucketRefused, match="it is read-only"):
        opened(tmp_path / "b", Waiting(url))


@pytest.mark.parametrize(
    "weather", [{"down": "closes"}, {"down": "hangs"}, {"says": {"SlowDown": True}, "verbs": "PUT"}]
)
def test_a_bucket_that_does_not_answer_is_told_after_a_while(
    s3: S3, url: str, tmp_path: Path, weather: dict[str, Any]
) -> None:
    bucket = Waiting(url, answer_s=0.05)
    s3.weather(**weather)
    with pytest.raises(BucketRefused, match=r"it does not answer: .* — check the address, the keys and the network"):
        opened(tmp_path / "a", bucket)
    assert UNREACHABLE_S < bucket.at_s < 2 * UNREACHABLE_S


def test_an_address_where_nobody_listens_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with in_thread() as s3:
        pass
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BucketRefused, match=f"it does not answer: .*127.0.0.1:{s3.port}"):
        opened(tmp_path / "a", Waiting(s3.url("p")))


def _strange(bucket: Waiting) -> None:
    bucket.put("photos/cat.jpg", b"cat")


def _of_the_same_name(bucket: Waiting) -> None:
    bucket.put(IDENTITY, b'{"name": "another program"}')


def _later(bucket: Waiting) -> None:
    bucket.put(IDENTITY, b"\x92\x63\xa1x")


def _earlier(bucket: Waiting) -> None:
    bucket.put(IDENTITY, b"\x92\x01\xa1x")


@pytest.mark.parametrize(
    ("harm", "kind", "words"),
    [
        (_strange, BadRequest, "holds objects of somebody else"),
        (_of_the_same_name, BadRequest, "holds objects of somebody else"),
        (_later, BucketRefused, "says format 99"),
        (_earlier, BucketRefused, r"says format 1, .* keep it with the Perdure that wrote it"),
    ],
)
def test_a_prefix_of_somebody_else_is_refused_and_left_as_it_is(
    s3: S3, url: str, tmp_path: Path, harm: Callable[[Waiting], None], kind: type[Exception], words: str
) -> None:
    bucket = Waiting(url)
    harm(bucket)
    before = s3.counts()
    with pytest.raises(kind, match=words):
        opened(tmp_path / "a", bucket)
    assert "PUT" not in happened(s3, before)


@pytest.mark.parametrize("harm", ["hole", "foreign"])
def test_a_journal_with_a_hole_or_a_foreign_slot_is_refused_by_name_and_left_as_it_is(
    s3: S3, url: str, tmp_path: Path, harm: str
) -> None:
    bucket, key = Waiting(url), slot_key(4)
    append(opened(tmp_path / "a", bucket), 1, 6)
    if harm == "hole":
        bucket.delete(key)
    else:
        other = Waiting(f"{url}/other")
        append(opened(tmp_path / "other", other), 1, 6)
        (body,) = other.read(key)
        bucket.put(key, body or b"")
    before = s3.counts()
    with pytest.raises(LedgerDamaged, match=f"{url}/{key}: .*{'missing' if harm == 'hole' else 'follow'}"):
        opened(tmp_path / "b", bucket)
    assert "PUT" not in happened(s3, before)


def test_of_two_that_open_a_new_prefix_at_once_one_commits(s3: S3, url: str, tmp_path: Path) -> None:
    s3.weather(put_ms=4, get_ms=4)
    together = Barrier(2)

    def life(number: int) -> str:
        together.wait()
        store = opened(tmp_path / str(number), Bucket(url))
        together.wait()
        try:
            append(store, 1, 3)
        except LedgerError as problem:
            return str(problem)
        return ""

    with ThreadPoolExecutor(2) as lives:
        ends = sorted(lives.map(life, range(2)))
    assert ends[0] == ""
    assert "another supervisor has begun" in ends[1]
    assert found(opened(tmp_path / "last", Bucket(url))) == [1, 2, 3]


# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize("prefix", ["with spaces in it", "ünïcode/日本", "100%", "a+b=c&d", "back\\slash", "x" * 400])
def test_a_prefix_may_have_any_characters_that_are_seen(s3: S3, url: str, tmp_path: Path, prefix: str) -> None:
    bucket = Waiting(f"{url}/{prefix}/")
    append(opened(tmp_path / "a", bucket), 1, 3)
    beside = Waiting(f"{url}/{prefix[:-1]}")
    assert not beside.names(), "another prefix"
    assert found(opened(tmp_path / "b", Waiting(f"{url}/{prefix}"))) == [1, 2, 3]
    assert read(bucket.signed([slot_key(1)])[0]) == (200, bucket.read(slot_key(1))[0])


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("s3://bucket/a/../b", "`..` in its prefix"),
        ("s3://bucket/../b", "`..` in its prefix"),
        ("s3://bucket/%2e%2e/b", "`..` in its prefix"),
        ("s3://bucket/./b", "`.` or `..`"),
        ("s3://bucket/a//b", "an empty part"),
        ("s3://bucket/a?versionId=3", "such as"),
        ("s3://bucket/a#b", "such as"),
        ("s3://bucket/a\tb", "characters that no address"),
        ("s3://bucket/a\u200bb", "characters that no address"),
        ("s3://bucket/" + "ü" * 251, "may have 500 bytes, and that of .* has 502"),
        ("s3://buck et/a", "cannot be opened"),
    ],
)
def test_an_address_that_would_open_another_prefix_than_is_read_is_refused(address: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as refused:
        Bucket(address)
    assert refused.value.field == "data"


def test_keys_in_an_address_are_refused_and_not_repeated() -> None:
    for keys in ("AKIA123:hidden", "hidden"):
        with pytest.raises(BadRequest, match="an address with keys in it") as refused:
            Bucket(f"s3://{keys}@bucket/a")
        assert "hidden" not in str(refused.value)


# ---------------------------------------------------------------- signed URLs


def read(url: str) -> tuple[int, bytes]:
    """What whoever has no keys is answered."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc)
    connection.request("GET", f"{parts.path}?{parts.query}")
    answer = connection.getresponse()
    result = answer.status, answer.read()
    connection.close()
    return result


def test_a_signed_url_is_good_for_an_hour(s3: S3, url: str) -> None:
    bucket = Waiting(url)
    keys = [f"storage/{name}" for name in ("a b", "ü", "c")]
    for key in keys:
        bucket.put(key, key.encode())
    signed = bucket.signed(keys)
    s3.weather(clock_s=3_500)
    assert [read(each) for each in signed] == [(200, key.encode()) for key in keys]
    s3.weather(clock_s=3_700)
    assert {read(each)[0] for each in signed} == {403}


def test_where_azure_would_refuse_what_is_signed_there_are_no_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACCOUNT_NAME", "account"), ("ACCOUNT_KEY", "a2V5")):
        monkeypatch.setenv(f"AZURE_STORAGE_{name}", value)
    assert len(Bucket("az://bucket/prefix").signed(["storage/1"])) == 1
    assert Bucket("az://bucket/a prefix").signed(["storage/1"]) == []


def test_where_nothing_is_signed_there_are_no_urls(s3: S3, url: str, tmp_path: Path) -> None:
    assert Bucket("memory:///").signed(["a"]) == []
    assert Bucket(f"file://{tmp_path}/bucket").signed(["a"]) == []
    assert Bucket(url).signed([]) == []


# ---------------------------------------------------------------- what it takes


def test_how_long_objects_take_to_be_created_is_measured_and_none_is_left(s3: S3, url: str) -> None:
    before = s3.counts()
    s3.weather(stall=True, stall_s=0.02, verbs="PUT")
    took_s = Bucket(url).puts_s(3)
    assert len(took_s) == 3
    assert min(took_s) >= 0.02
    assert happened(s3, before)["PUT"] == 3
    assert Waiting(url).names() == []
