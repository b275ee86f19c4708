"""Two sessions of Ray on one bucket do not fight: who begins after whom is decided by one table, and by knocking at a door."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore

from perdure.ledger.errors import BadRequest, LedgerError, ServedElsewhere
from perdure.ledger.slots import Create, JournalLife, NoReply
from perdure.ledger.store.bucket import Bucket
from perdure.ledger.store.bucket_store import BucketStore, last_life_in
from perdure.ledger.store.store import FactRow
from perdure.ledger.succession import (
    ATTEND_S,
    EARLIER_MAX,
    KNOCK_S,
    Claim,
    Holder,
    Traces,
    Verdict,
    holder_of,
    is_gone,
    knock,
    successor,
    verdict,
    where_to_ask,
)

AN_HOUR_MS = 3_600_000
MINE, TOLD = Claim("mine", "m1", 1_000), Claim("mine", "m1", 1_000, take_over=True)
AGAIN, TOLD_AGAIN = MINE._replace(is_restarted=True), TOLD._replace(is_restarted=True)
OWN, OTHER, AFTER_ME = Holder("mine"), Holder("other", "m2", 1_000), Holder("other", "m2", 1_000, ("third", "mine"))


@pytest.mark.parametrize(
    ("holder", "claim", "silent", "unasked", "answering"),
    [
        (None, MINE, "BEGINS", "BEGINS", "BEGINS"),
        (None, AGAIN, "BEGINS", "BEGINS", "BEGINS"),
        (OWN, MINE, "BEGINS", "BEGINS", "BEGINS"),
        (OWN, AGAIN, "BEGINS", "BEGINS", "BEGINS"),
        (OTHER, MINE, "BEGINS", "ASKS", "REFUSED"),
        (OTHER, AGAIN, "BEGINS", "ASKS", "REFUSED"),  # it has died before its first fence
        (OTHER, TOLD, "BEGINS", "BEGINS", "BEGINS"),
        (OTHER, TOLD_AGAIN, "BEGINS", "BEGINS", "BEGINS"),
        (AFTER_ME, MINE, "BEGINS", "ASKS", "REFUSED"),  # another program of that session opens it
        (AFTER_ME, AGAIN, "FOLLOWED", "FOLLOWED", "FOLLOWED"),
        (AFTER_ME, TOLD, "BEGINS", "BEGINS", "BEGINS"),
        (AFTER_ME, TOLD_AGAIN, "FOLLOWED", "FOLLOWED", "FOLLOWED"),  # it was told so once
        (Holder(), MINE, "BEGINS", "ASKS", "REFUSED"),  # of nobody is known who that is
    ],
)
def test_what_becomes_of_a_claim(
    holder: Holder | None, claim: Claim, silent: str, unasked: str, answering: str
) -> None:
    for skew_ms in (-AN_HOUR_MS, 0, AN_HOUR_MS):
        later = holder and holder._replace(since_ms=holder.since_ms + skew_ms)
        found = [verdict(claim, later, answers=answers) for answers in (False, None, True)]
        assert found == [Verdict[silent], Verdict[unasked], Verdict[answering]]


def test_a_fence_names_the_sessions_before_each_once_and_the_last_ones_only() -> None:
    holder = None
    for session in ("a", "b", "b", "a", "c"):
        claim = Claim(session, "m", 5, address="m:1", auth="token", home="boot", has_head=session == "c")
        holder = holder_of(successor(claim, holder).packed())
        assert holder is not None
        assert bool(holder.home) == (session == "c"), "only the machine of its head can know that a Ray is gone"
    assert holder == Holder("c", "m", 5, ("a", "b"), "m:1", "token", "boot")
    for number in range(40):
        holder = successor(Claim(f"s{number}"), holder)
    assert holder is not None
    assert holder.earlier == tuple(f"s{38 - at}" for at in range(EARLIER_MAX))
    assert (holder_of(None), holder_of(b"")) == (None, Holder())
    assert "another machine" in str(Holder())


HERE = Claim("mine", "m1", 1_000, address="m1:2", home="boot-1", has_head=True)
THERE = Holder("other", "m1", 900, (), "m1:1", "", "boot-1")
NOTHING, REFUSAL, PROCESSES = Traces(False, False), Traces(False, True), Traces(True, False)


@pytest.mark.parametrize(
    ("holder", "claim", "nothing", "refusal", "processes", "both"),
    [
        (THERE, HERE, "asked", "gone", "asked", "asked"),
        (THERE, HERE._replace(has_head=False), "asked", "gone", "asked", "asked"),
        (THERE, HERE._replace(address="m1:1"), "gone", "gone", "asked", "asked"),  # the port is that of our Ray now
        (THERE, HERE._replace(machine="m2"), "unseen", "unseen", "unseen", "unseen"),
        (THERE, HERE._replace(home="boot-2"), "unseen", "unseen", "unseen", "unseen"),  # a container of the same name
        (THERE, HERE._replace(home=""), "unseen", "unseen", "unseen", "unseen"),
        (THERE._replace(home=""), HERE, "unseen", "unseen", "unseen", "unseen"),  # its head was elsewhere
        (THERE._replace(home=""), HERE._replace(home=""), "unseen", "unseen", "unseen", "unseen"),
        (Holder(), HERE, "unseen", "unseen", "unseen", "unseen"),
        (Holder(), Claim(), "unseen", "unseen", "unseen", "unseen"),
    ],
)
def test_who_is_known_to_be_gone_is_known_on_the_machine_of_its_head_alone(
    holder: Holder, claim: Claim, nothing: str, refusal: str, processes: str, both: str
) -> None:
    for traces, expected in (
        (NOTHING, nothing), (REFUSAL, refusal), (PROCESSES, processes), (Traces(True, True), both)
    ):  # fmt: skip
        looked: list[Holder] = []
        known = is_gone(claim, holder, lambda at: looked.append(at) or traces)  # type: ignore[func-returns-value] # noqa: B023
        assert (known, bool(looked)) == (expected == "gone", expected != "unseen")


def test_who_has_to_go_elsewhere_is_told_where() -> None:
    assert where_to_ask((THERE, False)).endswith("run this on a machine of that cluster: m1")
    assert "m1 (Ray's other at m1:1) since 1970" in where_to_ask((THERE, False))
    assert "was stopped, and nobody has followed" in where_to_ask((THERE, True))
    assert "tells of nobody" in where_to_ask((None, False))


# ---------------------------------------------------------------- at a bucket


class Town:
    """A bucket, the stores that are open on it, and a clock that only pauses move. Meanwhile those that live attend to their doors."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.at_s, self.waited_s = folder, 0.0, 0.0
        self.attending: list[BucketStore] = []
        self.meanwhile: Callable[[], object] = lambda: None
        self.traces = PROCESSES

    def store(self, name: str, claim: Claim) -> BucketStore:
        bucket = Bucket(f"file://{self.folder}/bucket", pause=lambda _: None)
        return BucketStore(
            self.folder / name / "ledger", bucket, claim=claim, now_s=lambda: self.at_s, pause=self.pause,
            traces=lambda _: self.traces,
        )  # fmt: skip

    def opened(self, name: str, claim: Claim) -> BucketStore:
        began_s, store = self.at_s, self.store(name, claim)
        try:
            store.boot()
        finally:
            self.waited_s = self.at_s - began_s
        return store

    def pause(self, seconds: float) -> None:
        before, self.at_s = self.at_s, self.at_s + seconds
        if before // ATTEND_S != self.at_s // ATTEND_S:
            for store in self.attending:
                store.attend()
        self.meanwhile()

    def names(self, prefix: str) -> list[str]:
        store = LocalStore(self.folder / "bucket")
        return sorted(each["path"] for page in obstore.list(store, prefix) for each in page)


@pytest.fixture
def town(tmp_path: Path) -> Town:
    return Town(tmp_path)


def append(store: BucketStore, *numbers: int) -> None:
    for seq in numbers:
        store.append([FactRow(seq, seq, "run", None, "Happened", b"body")], [])


def found(store: BucketStore) -> list[int]:
    return [row.seq for row in store.facts("run")]


A, B, C = (
    Claim("ray-a", "laptop", 1_700_000_000_000),
    Claim("ray-b", "desk", 1_700_000_000_000),
    Claim("ray-c", "third"),
)


def test_the_same_session_begins_again_at_once(town: Town) -> None:
    append(town.opened("a", A), 1)
    again = town.opened("elsewhere", A._replace(is_restarted=True))
    assert (found(again), town.waited_s) == ([1], 0)
    assert town.names("life/") == []


@pytest.mark.parametrize("root_s", [0.0, 600.0])
def test_what_lives_is_not_taken_and_the_error_says_where_it_is_and_what_to_do(town: Town, root_s: float) -> None:
    first = town.opened("a", A)
    town.attending = [first]
    first.root_s = root_s
    append(first, 1)
    first.checkpoint(b"m", 1, [], [])
    append(first, 2)
    for _ in range(2):
        with pytest.raises(
            ServedElsewhere, match=r"served by laptop \(Ray's ray-a\) since 2023-11-14 22:13:20 UTC"
        ) as refused:
            town.opened("b", B)
        assert "--take-over" in refused.value.advice
        assert town.waited_s <= ATTEND_S + 0.5
    append(first, 3)  # it was not fenced
    assert found(first) == [1, 2, 3]


def test_what_is_dead_is_followed_after_a_few_seconds(town: Town) -> None:
    append(town.opened("a", A), 1)
    other = town.opened("b", B)
    assert found(other) == [1]
    assert KNOCK_S <= town.waited_s < KNOCK_S + 1


def test_what_is_known_to_be_gone_is_followed_at_once_and_what_lives_beside_it_is_asked(town: Town) -> None:
    old, new = HERE._replace(session="old", address="m1:1"), HERE
    first = town.opened("a", old)
    append(first, 1)
    town.attending = [first]
    with pytest.raises(ServedElsewhere, match="old at m1:1"):
        town.opened("b", new)
    town.traces = REFUSAL
    assert found(town.opened("b", new)) == [1]
    assert town.waited_s == 0


def test_the_last_life_is_told_from_the_bucket_alone(town: Town) -> None:
    url = f"file://{town.folder}/bucket"
    with pytest.raises(BadRequest, match="nothing has run there"):
        last_life_in(url)
    first = town.opened("a", HERE)
    first.root_s = 0
    append(first, 1)
    first.checkpoint(b"m", 1, [], [])
    before = town.names("")
    assert last_life_in(url) == (successor(HERE, None), False)
    assert town.names("") == before, "nobody has begun, and nobody has knocked"
    first.close()
    first.depart()
    assert last_life_in(url) == (successor(HERE, None), True)
    town.opened("b", B)
    assert last_life_in(url) == (successor(B, successor(HERE, None)), False)


def test_what_was_stopped_is_followed_at_once(town: Town) -> None:
    first = town.opened("a", A)
    append(first, 1)
    first.close()
    first.depart()
    assert found(town.opened("b", B)) == [1]
    assert town.waited_s == 0


def test_one_that_does_not_attend_and_commits_answers_by_that(town: Town) -> None:
    first = town.opened("a", A)
    numbers = iter(range(1, 100))
    town.meanwhile = lambda: append(first, next(numbers))
    with pytest.raises(ServedElsewhere, match="laptop"):
        town.opened("b", B)


def test_to_take_over_is_asked_for_and_who_was_followed_ends_for_good(town: Town) -> None:
    first = town.opened("a", A)
    append(first, 1)
    taken = town.opened("b", B._replace(take_over=True))
    assert town.waited_s == 0
    with pytest.raises(LedgerError, match="another supervisor has begun"):
        first.attend()  # it has nothing to commit, and is told nevertheless
    with pytest.raises(LedgerError, match="another supervisor has begun"):
        append(first, 2)
    first.close()
    for claim in (A, A._replace(take_over=True)):
        with pytest.raises(ServedElsewhere, match=r"taken over, and has been served by desk \(Ray's ray-b\)"):
            town.opened("a", claim._replace(is_restarted=True))
    append(taken, 2)
    assert found(taken) == [1, 2], "nobody has fenced it"
    back = town.opened("a", A)  # a program opens it there again, and `taken` does not answer
    assert found(back) == [1, 2]
    taken.close()
    with pytest.raises(ServedElsewhere, match="taken over"):
        town.opened("b", B._replace(take_over=True, is_restarted=True))
    assert len([each for each in town.names("journal/") if each]) == 5  # three fences, two commits


def test_one_of_two_that_follow_at_once_is_refused(town: Town) -> None:
    town.opened("a", A)
    thirds: list[BucketStore] = []

    def third() -> None:
        town.meanwhile = lambda: None
        thirds.append(town.store("c", C._replace(take_over=True)))
        thirds[0].boot()
        town.attending = thirds

    town.meanwhile = third
    with pytest.raises(ServedElsewhere, match="third"):
        town.opened("b", B)
    append(thirds[0], 1)


def test_a_bucket_is_looked_at_whoever_serves_it(town: Town) -> None:
    first = town.opened("a", A)
    append(first, 1)
    looking = BucketStore(
        town.folder / "c" / "ledger", Bucket(f"file://{town.folder}/bucket"), claim=C, looks=True, pause=town.pause
    )
    looking.boot()
    assert (found(looking), town.at_s) == ([1], 0)
    append(first, 2)


def test_no_knock_is_left_out_when_answers_are_lost() -> None:
    """Whoever attends looks for the next number only."""
    there: set[str] = set()
    for loses in (False, True, False):
        asking, answer = knock(7), ""
        request = next(asking)
        lost = loses
        try:
            while True:
                if not isinstance(request, Create):
                    request = asking.send(max(there, default=""))
                    continue
                is_new, _ = request.key not in there, there.add(request.key)
                if lost and is_new:
                    lost = False
                    request = asking.throw(NoReply())
                else:
                    request = asking.send(is_new)
        except StopIteration as done:
            answer = done.value
        assert f"life/{7:012x}/knock-{answer:08}" in there
    assert sorted(there) == [f"life/{7:012x}/knock-{at:08}" for at in range(1, 5)]


def test_a_newest_fence_behind_the_last_root_is_read_too(town: Town) -> None:
    first = town.opened("a", A)
    first.root_s = 0
    append(first, 1)
    first.checkpoint(b"m", 1, [], [])
    life = JournalLife(b"x")
    bucket = Bucket(f"file://{town.folder}/bucket")
    begun = bucket.run(life.look())
    assert begun.root is not None
    assert begun.entries == []
    assert life.chain.fence == 1
