"""Lives of the supervisor play against a bucket behind a network that delays, doubles, reorders and loses.

A request takes effect at any later time, also after its sender has given it up or died, and an answer may be lost. The die chooses each
step. Whoever has finished beginning knows what was acknowledged before; nothing is acknowledged later that it does not know; and in the end
everything that was ever acknowledged is there once, and so is every object that the last root names. Without any one of the rules of
`ledger.slots` that does not hold.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Generator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from perdure.ledger import pack, slots, unpack
from perdure.ledger.slots import (
    IDENTITY,
    Answer,
    Begun,
    Chain,
    Create,
    Delete,
    Fenced,
    Get,
    JournalLife,
    Names,
    Newest,
    NoReply,
    Procedure,
    Request,
    Root,
    SlotDamaged,
    SlotRecord,
    slot_key,
)

LIVES, COMMITS, STEPS = 4, 6, 3_000


class Wrong(AssertionError):
    """An acknowledged commit is lost, or is there twice."""


# ---------------------------------------------------------------- the rules, each left out


def no_slot(_: int) -> bool:
    return False


def every_object(_: str) -> bool:
    return True


class Overwrites(NamedTuple):
    """A request that no life makes: put an object, whatever is there."""

    key: str
    body: bytes


class OverwritingLife(JournalLife):
    def create(self, key: str, body: bytes) -> Procedure[bool]:
        while True:
            try:
                yield Overwrites(key, body)  # type: ignore[misc]
            except NoReply:
                continue
            return True


class ChangingLife(JournalLife):
    def create(self, key: str, body: bytes) -> Procedure[bool]:
        try:
            if (yield Create(key, body)):
                return True
        except NoReply:
            if key.startswith("journal"):
                entry = SlotRecord(*slots.parts_of(key, body))
                body = slots.framed(entry._replace(body=entry.body + b"again"))
        return (yield from super().create(key, body))


class TrustingLife(JournalLife):
    def create(self, key: str, body: bytes) -> Procedure[bool]:
        while True:
            try:
                yield Create(key, body)
            except NoReply:
                continue
            return True


class TidyLife(JournalLife):
    def _may_go(self, slot: int) -> bool:
        return slot > 0


class LifeWithoutFirstLook(JournalLife):
    def _has_news(self, known: int) -> bool:
        return known < 0


class LifeWithoutSecondLook(JournalLife):
    def _is_passed(self, newest: Root | None) -> bool:
        return False


class GreedyLife(JournalLife):
    def _go_on_from(self, found: Root | None) -> None:
        super()._go_on_from(found)
        self._told, self._fences = 0, set()


class HastyLife(JournalLife):
    def publish(self, chain: Chain, about: bytes, since: int = 0) -> Procedure[bool]:
        self._since = since
        yield from self.collect(0, no_slot, (), every_object)
        return (yield from super().publish(chain, about, since))


class LifeOfAnEarlierRoot(JournalLife):
    def _begun(self, found: Root | None, last: Root | None, entries: list[tuple[SlotRecord, Chain]]) -> Begun:
        return Begun(found, entries)


class SweepingLife(JournalLife):
    def _is_last(self) -> Procedure[bool]:
        yield from ()
        return True


BREAKERS: dict[str, type[JournalLife]] = {
    "create only": OverwritingLife,
    "the same body": ChangingLife,
    "read back": TrustingLife,
    "fences stay": TidyLife,
    "look before the fence": LifeWithoutFirstLook,
    "look after the fence": LifeWithoutSecondLook,
    "delete what was read": GreedyLife,
    "publish first": HastyLife,
    "the last root counts": LifeOfAnEarlierRoot,
    "look before the sweep": SweepingLife,
}
SHOWN_BY = {
    "create only": 0,
    "the same body": 5,
    "read back": 0,
    "fences stay": 11,
    "look before the fence": 1,
    "look after the fence": 251,
    "delete what was read": 223,
    "publish first": 0,
    "the last root counts": 703,
    "look before the sweep": 17,
}
"""A seed in which a rule matters."""


# ---------------------------------------------------------------- the world


class Bucket:
    """The objects, and one request at one moment."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.hint = ""  # what an old list names
        self.listed: list[str] | None = None  # what is there, as lists tell it

    def do(self, request: object) -> Answer:
        match request:
            case Get(keys):
                return [self.held.get(key) for key in keys]
            case Create(key, body):
                is_new = key not in self.held
                self.held.setdefault(key, body)
                return is_new
            case Overwrites(key, body):
                self.held[key] = body
                return True
            case Newest(prefix):
                return self.hint or max(self.names(prefix), default="")
            case Names(prefix, last):
                return [key for key in self.names(prefix) if key <= last]
            case Delete(keys):
                for key in keys:
                    self.held.pop(key, None)
                return None
        raise AssertionError(request)

    def names(self, prefix: str) -> list[str]:
        return [key for key in (self.held if self.listed is None else self.listed) if key.startswith(prefix)]


@dataclass(eq=False)
class Asked:
    """A request on its way. The keys of one that reads many are read at different times."""

    request: Any
    process: Process
    number: int
    left: list[int] = field(default_factory=list)
    found: list[bytes | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        if isinstance(self.request, Get):
            self.left, self.found = list(range(len(self.request.keys))), [None] * len(self.request.keys)


Work = Generator[Request, Answer, None]


@dataclass(eq=False)
class Process:
    """One life, and what it waits for."""

    number: int
    life: JournalLife
    work: Work
    waits_for: int = 0
    has_begun: bool = False
    knows: list[str] = field(default_factory=list)
    is_over: str = ""
    answers: dict[int, Answer] = field(default_factory=dict)


class Play:
    """One play of a seed."""

    def __init__(self, seed: int, kind: type[JournalLife]) -> None:
        self.die, self.kind, self.bucket = random.Random(seed), kind, Bucket()
        self.net: list[Asked] = []
        self.processes: list[Process] = []
        self.acknowledged: list[str] = []
        self.epochs: dict[str, int] = {}
        self.asked = 0
        self.seen: Counter[str] = Counter()
        self.loss, self.impatience = self.die.choice([(0.0, 0.0), (0.05, 0.05), (0.2, 0.3)])
        self.freshness = self.die.choice([1.0, 0.3])  # of lists

    def spawn(self) -> None:
        number = len(self.processes)
        life = self.kind(f"life {number}".encode())
        process = Process(number, life, self.life_of(number))
        self.processes.append(process)
        self.go_on(process, None)

    def life_of(self, number: int) -> Work:
        process = self.processes[number]
        begun = yield from process.life.begin()
        process.knows, names = known_by(begun), named_by(begun)
        process.has_begun = True
        if slot_key(process.life.chain.slot + 1) not in self.bucket.held:  # else a later life has begun
            self.find(names)
        epoch = process.life.chain.epoch
        lacking = [each for each in self.acknowledged if each not in process.knows and self.epochs[each] <= epoch]
        if lacking:
            raise Wrong(f"life {number} has begun without {lacking}, which were acknowledged")
        for commit in (f"{number}.{at}" for at in range(COMMITS)):
            yield from process.life.append(commit.encode())
            process.knows.append(commit)
            self.acknowledge(process, commit)
            if self.die.random() < 0.3:
                names = yield from self.publish(process, names)

    def publish(self, process: Process, names: list[str]) -> Procedure[list[str]]:
        """Some of what was named is named again, beside something new. Returns what is named now."""
        life, chain = process.life, process.life.chain
        new = f"snapshot/{chain.slot:012x}-{process.number}"
        yield from life.create(new, b"")
        names = [each for each in names if self.die.random() < 0.7] + [new]
        since = self.die.choice([0, chain.slot, max(chain.slot - 2, 0)])
        if (yield from life.publish(chain, pack([process.knows, names]), since)):
            oldest = self.die.randrange(10)
            yield from life.collect(oldest, no_slot, ["snapshot/"], lambda key: key in names or self.die.random() < 0.2)
        return names

    def find(self, names: list[str]) -> None:
        lacking = [each for each in names if each not in self.bucket.held]
        if lacking:
            raise Wrong(f"{lacking} are named by the last root, and were deleted")

    def acknowledge(self, process: Process, commit: str) -> None:
        self.acknowledged.append(commit)
        self.epochs[commit] = process.life.chain.epoch
        for each in self.processes:
            is_later = each.has_begun and each.life.chain.epoch > process.life.chain.epoch
            if is_later and commit not in each.knows:
                raise Wrong(
                    f"life {process.number} has acknowledged {commit}, which the later life {each.number} does not know"
                )

    def go_on(self, process: Process, answer: Answer | NoReply) -> None:
        try:
            asked = process.work.throw(answer) if isinstance(answer, NoReply) else process.work.send(answer)
        except StopIteration:
            process.is_over = "done"
        except Fenced:
            process.is_over = "fenced"
        except SlotDamaged as problem:
            raise Wrong(f"life {process.number} finds {problem}") from problem
        else:
            self.asked += 1
            process.waits_for = self.asked
            self.net.append(Asked(asked, process, self.asked))
        self.seen[process.is_over] += 1

    def reach(self, asked: Asked) -> None:
        """A request comes to the bucket, or a part of it does; it may be lost, and so may its answer."""
        if asked.left:
            at = asked.left.pop(self.die.randrange(len(asked.left)))
            asked.found[at] = self.bucket.held.get(asked.request.keys[at])
            if asked.left:
                return
        self.net.remove(asked)
        if self.die.random() < self.loss:
            return
        if self.die.random() < self.freshness:
            self.bucket.listed = list(self.bucket.held)
        answer = asked.found if isinstance(asked.request, Get) else self.bucket.do(asked.request)
        if self.die.random() >= self.loss:
            asked.process.answers[asked.number] = answer

    def step(self) -> bool:
        """One step. False if there is none to take."""
        waiting = [each for each in self.processes if not each.is_over]
        choices: list[tuple[str, Any]] = [("reach", each) for each in self.net]
        for each in waiting:
            choices += [("answer", each)] * 3 if each.waits_for in each.answers else []
            choices += [("give up", each)] if self.die.random() < self.impatience else []
        if len(self.processes) < LIVES and (not waiting or self.die.random() < 0.05):
            choices.append(("spawn", None))
        if waiting and self.die.random() < 0.01:
            choices.append(("kill", self.die.choice(waiting)))
        if not choices:
            return False
        what, whom = self.die.choice(choices)
        self.seen[what] += 1
        if what == "reach":
            self.reach(whom)
        elif what == "answer":
            self.go_on(whom, whom.answers.pop(whom.waits_for))
        elif what == "give up":
            self.go_on(whom, NoReply())
        elif what == "kill":
            whom.is_over = "killed"
            whom.work.close()
        else:
            self.spawn()
        return True

    def play(self) -> None:
        self.spawn()
        for _ in range(STEPS):
            if self.step():
                continue
            waiting = [each for each in self.processes if not each.is_over]
            if waiting:  # for an answer that was lost
                self.go_on(self.die.choice(waiting), NoReply())
            elif len(self.processes) < LIVES:
                self.spawn()
            else:
                break
        self.look_back()

    def look_back(self) -> None:
        """All is well again: one more life knows everything."""
        last = JournalLife(b"last")
        try:
            begun: Begun = driven(last.begin(), self.bucket)
            knows = known_by(begun)
        except SlotDamaged as problem:
            raise Wrong(f"the last life finds {problem}") from problem
        lacking = [each for each in self.acknowledged if each not in knows]
        twice = [each for each, count in Counter(knows).items() if count > 1]
        if lacking or twice:
            raise Wrong(f"in the end {lacking} are lost, and {twice} are there twice")
        self.find(named_by(begun))


def known_by(begun: Begun) -> list[str]:
    """The commits that a life has found."""
    before = unpack(begun.root.about)[0] if begun.root else []
    return before + [entry.body.decode() for entry, _ in begun.entries if not entry.is_fence]


def named_by(begun: Begun) -> list[str]:
    """The objects that its root names."""
    return list(unpack(begun.root.about)[1]) if begun.root else []


def driven(work: Generator[Request, Answer, Any], bucket: Bucket, answer: Answer = None) -> Any:
    """What a procedure comes to where each request is answered at once, the one that it has made by what is given."""
    while True:
        try:
            answer = bucket.do(work.send(answer))
        except StopIteration as done:
            return done.value


@pytest.fixture(autouse=True)
def _short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "WINDOW", 3)
    monkeypatch.setattr(slots, "LANDING", 3)


def wrong_of(kind: type[JournalLife], seeds: range) -> tuple[list[str], Counter[str]]:
    """What was wrong in the plays of these seeds, and what was seen in them."""
    wrong, seen = [], Counter[str]()
    for seed in seeds:
        play = Play(seed, kind)
        try:
            play.play()
        except Wrong as problem:
            wrong.append(f"seed {seed}: {problem}")
        seen.update(play.seen, acknowledged=len(play.acknowledged))
    return wrong, seen


def test_nothing_acknowledged_is_lost_and_nothing_is_there_twice() -> None:
    wrong, seen = wrong_of(JournalLife, range(300))
    assert not wrong
    assert all(seen[each] > 100 for each in ("acknowledged", "fenced", "kill", "give up", "done"))


@pytest.mark.parametrize("rule", BREAKERS)
def test_where_a_rule_matters_nothing_is_lost_with_it_and_something_without_it(rule: str) -> None:
    (with_it, _), (without_it, _) = (
        wrong_of(kind, range(SHOWN_BY[rule], SHOWN_BY[rule] + 1)) for kind in (JournalLife, BREAKERS[rule])
    )
    assert not with_it
    assert without_it


@pytest.mark.thorough
def test_in_many_plays_neither() -> None:
    wrong, _ = wrong_of(JournalLife, range(5_000))
    assert not wrong


# ---------------------------------------------------------------- one life at a time


def begun(bucket: Bucket, nonce: bytes = b"one") -> JournalLife:
    life = JournalLife(nonce)
    driven(life.begin(), bucket)
    return life


def collect(life: JournalLife, bucket: Bucket, oldest: int = 0, kept: Collection[int] = ()) -> None:
    driven(life.collect(oldest, lambda slot: slot in kept, (), every_object), bucket)


def test_a_life_finds_what_an_earlier_one_has_committed_and_in_which_order() -> None:
    bucket = Bucket()
    life = begun(bucket)
    for at in range(8):
        driven(life.append(f"c{at}".encode(), [b"piece"] * at), bucket)
    found: Begun = driven(JournalLife(b"two").begin(lambda _: b"who I am"), bucket)
    (_, *commits, fence) = [entry for entry, _ in found.entries]
    assert [each.body for each in commits] == [f"c{at}".encode() for at in range(8)]
    assert [len(each.pieces) for each in commits] == list(range(8))
    assert (fence.is_fence, fence.body, fence.epoch) == (True, b"who I am", 2)


def test_the_earlier_of_two_lives_is_fenced_by_the_beginning_of_the_later_one() -> None:
    bucket = Bucket()
    earlier = begun(bucket)
    driven(earlier.append(b"in time"), bucket)
    later = begun(bucket, b"two")
    with pytest.raises(Fenced):
        driven(earlier.append(b"late"), bucket)
    driven(later.append(b"mine"), bucket)
    assert known_by(driven(JournalLife(b"three").begin(), bucket)) == ["in time", "mine"]


def test_a_commit_whose_answer_was_lost_is_there_once() -> None:
    bucket = Bucket()
    life = begun(bucket)
    work = life.append(b"once")
    bucket.do(work.send(None))
    again = work.throw(NoReply())
    assert bucket.do(again) is False
    assert isinstance(work.send(False), Get)
    with pytest.raises(StopIteration):
        work.send([bucket.held[slot_key(2)]])
    assert known_by(driven(JournalLife(b"two").begin(), bucket)) == ["once"]


def test_what_a_snapshot_covers_is_deleted_and_fences_are_not() -> None:
    bucket = Bucket()
    for nonce in (b"one", b"two"):
        life = begun(bucket, nonce)
        for at in range(3):
            driven(life.append(f"{at}".encode()), bucket)
    assert driven(life.publish(life.chain, pack([["all"], []]), life.chain.slot), bucket)
    assert not driven(life.publish(life.chain._replace(slot=5), pack([["less"], []])), bucket)
    collect(life, bucket)
    assert sorted(key for key in bucket.held if key.startswith("journal")) == [slot_key(1), slot_key(5)]
    assert known_by(driven(JournalLife(b"three").begin(), bucket)) == ["all"]


def test_a_life_that_was_overtaken_announces_no_snapshot() -> None:
    bucket = Bucket()
    old, new = begun(bucket), begun(bucket, b"two")
    assert driven(new.publish(new.chain, pack([[], []])), bucket)
    with pytest.raises(Fenced):
        driven(old.publish(Chain(9, 9, b""), pack([[], []])), bucket)


@pytest.mark.parametrize("at", [0, 5, -1])
def test_a_damaged_slot_is_named_and_nothing_is_written(at: int) -> None:
    bucket = Bucket()
    life = begun(bucket)
    driven(life.append(b"first"), bucket)
    driven(life.append(b"second"), bucket)
    body = bytearray(bucket.held[slot_key(2)])
    body[at] ^= 1
    bucket.held[slot_key(2)] = bytes(body)
    before = dict(bucket.held)
    with pytest.raises(SlotDamaged, match=slot_key(2)):
        driven(JournalLife(b"two").begin(), bucket)
    assert bucket.held == before


def test_a_slot_of_another_journal_is_named() -> None:
    bucket, other = Bucket(), Bucket()
    life = begun(bucket)
    driven(life.append(b"mine"), bucket)
    stranger = begun(other, b"two")
    driven(stranger.append(b"theirs"), other)
    bucket.held[slot_key(2)] = other.held[slot_key(2)]
    with pytest.raises(SlotDamaged, match="does not follow"):
        driven(JournalLife(b"three").begin(), bucket)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_slot_that_is_missing_before_others_is_named_and_nothing_is_written(lost: int) -> None:
    bucket = Bucket()
    life = begun(bucket)
    for commit in (b"1", b"2", b"3"):
        driven(life.append(commit), bucket)
    del bucket.held[slot_key(lost)]
    before = dict(bucket.held)
    with pytest.raises(SlotDamaged, match=f"{slot_key(lost)}: it is missing, and later ones are there"):
        driven(JournalLife(b"two").begin(), bucket)
    assert bucket.held == before


def test_slots_that_are_written_while_they_are_read_are_no_hole() -> None:
    bucket = Bucket()
    life = begun(bucket)
    reader = JournalLife(b"two")
    work = reader.begin()
    asked = work.send(None)
    while asked != Get(tuple(slot_key(slot) for slot in (1, 2, 3))):
        asked = work.send(bucket.do(asked))
    first, _, _ = bucket.do(asked)  # type: ignore[misc, union-attr]
    driven(life.append(b"1"), bucket)
    driven(life.append(b"2"), bucket)
    assert known_by(driven(work, bucket, [first, None, bucket.held[slot_key(3)]])) == ["1", "2"]


def test_of_two_that_open_a_new_prefix_at_once_the_later_one_finds_the_first() -> None:
    """It finds nothing under the name, then the first opens the prefix, then it finds something in the list."""
    bucket = Bucket()
    later = slots.claim(b"later")
    assert later.send(None) == Get((IDENTITY,))
    assert later.send([None]) == Newest("")
    assert driven(slots.claim(b"first"), bucket) == b"first"
    assert driven(later, bucket, bucket.do(Newest(""))) == b"first"


def test_a_list_that_is_older_than_roots_that_were_deleted_hides_no_snapshot() -> None:
    bucket = Bucket()
    life = begun(bucket)
    for number in range(8):
        driven(life.append(b"more"), bucket)
        driven(life.publish(life.chain, pack([[f"up to {number}"], []])), bucket)
    collect(life, bucket, oldest=8)
    assert sorted(key for key in bucket.held if key.startswith("root")) == [slots.root_key(at) for at in (3, 6, 7, 8)]
    for hint in ("", "root/00000001", "root/00000005"):
        bucket.listed, bucket.hint = [], hint
        assert known_by(driven(JournalLife(hint.encode()).begin(), bucket)) == ["up to 7"]


def test_what_was_kept_for_a_backup_is_deleted_after_it_and_fences_stay() -> None:
    bucket = Bucket()
    life = begun(bucket)
    for _ in range(4):
        driven(life.append(b"more"), bucket)
    driven(life.publish(life.chain, pack([[], []]), life.chain.slot), bucket)
    collect(life, bucket, kept=[3, 4])
    there = [key for key in bucket.held if key.startswith("journal")]
    assert there == [slot_key(1), slot_key(3), slot_key(4)]
    bucket.held["journal/of somebody else"] = b"?"
    later = begun(bucket, b"two")
    driven(later.publish(later.chain, pack([[], []])), bucket)
    collect(later, bucket, kept=[4])
    assert [key for key in bucket.held if key.startswith("journal/0")] == [slot_key(1), slot_key(4), slot_key(6)]


def test_the_roots_with_which_a_reader_can_begin_are_told() -> None:
    bucket = Bucket()
    life = begun(bucket)
    for number in range(6):
        driven(life.append(b"more"), bucket)
        driven(life.publish(life.chain, pack([[], []]), 4 if number == 5 else 0), bucket)
    assert [root.number for root in driven(life.kept_roots(), bucket)] == [6, 5, 4, 3]


def test_a_list_that_is_old_hides_no_snapshot() -> None:
    bucket = Bucket()
    life = begun(bucket)
    for number in range(3):
        driven(life.append(b"more"), bucket)
        driven(life.publish(life.chain, pack([[f"up to {number}"], []])), bucket)
    bucket.hint = "root/00000001"
    assert known_by(driven(JournalLife(b"two").begin(), bucket)) == ["up to 2"]
