"""What of a bucket is kept and for how long, and how a ledger is looked at and restored as it was then."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.ledger import slots
from perdure.ledger.bucket_history import Moment
from perdure.ledger.errors import BadRequest
from perdure.ledger.storage.patches import FilePatch, Patch, StorageImage
from perdure.ledger.store import bucket_storages
from perdure.ledger.store.bucket_past import PastStore
from perdure.ledger.store.bucket_store import BucketStore
from perdure.ledger.store.store import FactRow
from tests.ledger.test_bucket_storages import Model
from tests.ledger.test_bucket_store import Cloud, found

HOUR_MS = 3_600_000
AGENTS = [f"agent {at}" for at in range(6)]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_storages, "BLOCK", 1000)
    monkeypatch.setattr(bucket_storages, "PACK", 4000)


class History:
    """A ledger in a bucket, and what it was after each slot."""

    def __init__(self, place: Path, seed: int = 0) -> None:
        self.cloud, self.model, self.die = Cloud(), Model(random.Random(seed)), random.Random(seed)
        self.place, self.lives, self.looks = place, 0, 0
        self.now_ms = 1_800_000_000_000
        self.done = 0
        self.states: dict[int, tuple[int, int, dict[str, StorageImage]]] = {}  # by slots: when, the last fact, storages
        self.begin()

    def begin(self) -> None:
        self.lives += 1
        self.store = BucketStore(
            self.place / f"machine {self.lives}",
            self.cloud,
            now_s=lambda: self.now_ms / 1000,
            wall_ms=lambda: self.now_ms,
        )
        self.store.boot()
        self.store.root_s = 0

    def commit(self) -> None:
        rows = []
        if self.die.random() < 0.8:
            self.done += 1
            rows = [FactRow(self.done, self.now_ms, f"run {self.done % 7}", None, "Happened", b"")]
        self.store.append(rows, [], [self.model.patch() for _ in range(1 if not rows else self.die.randrange(3))])
        self.states[self.store._life.chain.slot] = self.now_ms, self.done, dict(self.model.images)  # noqa: SLF001

    def root(self) -> None:
        self.store.checkpoint(b"m", self.done, [], [])

    def pass_hours(self, hours: int, *, lives: bool = False) -> None:
        """Each hour some commits, and a root."""
        for _ in range(hours):
            self.now_ms += HOUR_MS
            for _ in range(self.die.randrange(1, 4)):
                self.commit()
            self.root()
            if lives and self.die.random() < 0.3:
                self.begin()

    def past(self, moment: Moment) -> PastStore:
        self.looks += 1
        store = PastStore(self.place / f"past {self.looks}", self.cloud, moment)
        store.boot()
        return store

    def check(self, moment: Moment, slot: int) -> None:
        """What is found of a moment is what was there at this slot."""
        store = self.past(moment)
        _, done, images = self.states[slot]
        assert found(store) == list(range(1, done + 1))
        assert {agent: image.files for agent in AGENTS if (image := store.storage(agent))} == {
            agent: image.files for agent, image in images.items()
        }
        store.close()


@pytest.mark.thorough
def test_each_moment_of_the_last_day_can_be_looked_at_and_earlier_ones_are_deleted(tmp_path: Path) -> None:
    history = History(tmp_path, 1)
    history.pass_hours(34, lives=True)
    kept = [slot for slot, (at_ms, *_) in history.states.items() if at_ms > history.now_ms - 24 * HOUR_MS]
    for slot in history.die.sample(kept, 6):
        history.check(Moment(slot=slot), slot)
        last = max(each for each in kept if history.states[each][0] == history.states[slot][0])
        last = max(each for each, (_, done, _) in history.states.items() if done == history.states[last][1])
        history.check(Moment(at_ms=history.states[slot][0]), last)
    history.check(Moment(), max(kept))
    with pytest.raises(
        BadRequest, match=r"slot 2 is not kept in .* it has slots \d+ \(of 20.*\) to \d+ \(of 20.*\), and no backups"
    ):
        history.past(Moment(slot=2))
    with pytest.raises(BadRequest, match="is not kept"):
        history.past(Moment(at_ms=history.now_ms - 30 * HOUR_MS))
    with pytest.raises(BadRequest, match="is not kept"):
        history.past(Moment(slot=max(kept) + 9))
    there = {int(key.removeprefix("journal/"), 16) for key in history.cloud.names("journal")}
    assert len([slot for slot in there if slot < min(kept)]) < history.lives + 6, (
        "the fences, and those since the floor"
    )
    alive = sum(len(body) for image in history.model.images.values() for body in image.files.values())
    written = sum(len(history.cloud.get(name)) for name in history.cloud.names("storage"))
    history.pass_hours(30)
    assert sum(len(history.cloud.get(name)) for name in history.cloud.names("storage")) < 3 * (alive + written)


def test_a_ledger_of_which_nothing_was_deleted_is_kept_from_its_first_commit(tmp_path: Path) -> None:
    history = History(tmp_path)
    before_ms = history.now_ms
    history.pass_hours(3)
    for slot in (2, 3):
        history.check(Moment(slot=slot), slot)
    for moment in (Moment(slot=0), Moment(at_ms=before_ms)):
        with pytest.raises(BadRequest, match=r"slots 1 to|nothing had been committed"):
            history.past(moment)


def test_what_an_interrupted_upload_has_left_is_deleted_after_a_day_and_what_is_strange_is_not(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.pass_hours(2)
    slot = history.store._life.chain.slot  # noqa: SLF001
    strays = [f"{folder}/{slot:012x}-ab-1/000000" for folder in ("snapshot", "storage")]
    strange = ["snapshot/mine", "journal/mine", "root/mine", "storage/mine/x"]
    for key in (*strays, *strange):
        history.cloud.put(key, b"?")
    history.pass_hours(22)
    assert set(strays) <= set(history.cloud.names())
    history.pass_hours(6)
    assert not set(strays) & set(history.cloud.names())
    assert set(strange) <= set(history.cloud.names())


@pytest.mark.parametrize("harm", [lambda history: history.begin(), lambda _: None])
def test_a_life_that_was_overtaken_deletes_nothing(tmp_path: Path, harm: Callable[[History], None]) -> None:
    history = History(tmp_path)
    history.pass_hours(30)
    old = history.store
    history.now_ms += 30 * HOUR_MS
    harm(history)
    before = history.cloud.names()
    old.checkpoint(b"later", history.done, [], [])
    gone = set(before) - set(history.cloud.names())
    assert bool(gone) == (history.store is old)


def test_what_a_backup_pins_is_kept_until_it_is_deleted(tmp_path: Path) -> None:
    history = History(tmp_path, 4)
    history.pass_hours(3)
    history.commit()
    slot = history.store._life.chain.slot  # noqa: SLF001
    pinned = history.past(Moment())
    pin = pinned.pin_here("monday", history.now_ms)
    assert pin is not None
    assert pinned.pin_here("monday", history.now_ms + 1) is None, "there is one of this name"
    history.pass_hours(30)
    with pytest.raises(BadRequest, match=rf"is not kept .* and the backups monday \(slot {slot}, 20"):
        history.past(Moment(slot=slot))
    history.check(Moment(backup="monday"), slot)
    assert not pinned.lost(pin, set())
    later = history.past(Moment())
    assert not later.to_go(later.all_names())
    later.unpin("monday")
    due = later.to_go(later.all_names())
    assert due
    history.begin()  # another life reads what it did not know
    history.pass_hours(2)
    assert not set(due) & set(history.cloud.names())
    assert slots.slot_key(1) in history.cloud.names()


def test_a_pin_that_comes_too_late_is_none(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.pass_hours(2)
    late = history.past(Moment())
    history.pass_hours(40)
    with pytest.raises(BadRequest, match="is not kept any more"):
        late.pin_here("late", 1)
    assert not late.pins()


def test_a_pin_that_cannot_be_read_lets_nothing_be_deleted(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.pass_hours(20)
    history.cloud.put("backup/x", b"?")
    before = set(history.cloud.names())
    history.pass_hours(20)
    assert before <= set(history.cloud.names())


def test_patches_are_told_of_a_moment_between_two_facts(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.store.append([FactRow(1, history.now_ms, "run", None, "Happened", b"")], [])
    history.store.append([], [], [Patch("a", 1, 1, [FilePatch("", 0, b"1", 1)])])
    history.store.append([], [], [Patch("a", 1, 2, [FilePatch("", 1, b"2", 2)])])
    for slot, content in ((2, None), (3, b"1"), (4, b"12")):
        image = history.past(Moment(slot=slot)).storage("a")
        assert (image and image.files[""]) == content
