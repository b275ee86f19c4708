"""Agents' storages that ride with the ledger in a bucket: whatever is lost beside it, each is as its last acknowledged commit left it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from perdure.ledger.errors import LedgerDamaged
from perdure.ledger.storage.patches import FilePatch, Patch, StorageImage, image_after, whole
from perdure.ledger.store import bucket_storages
from perdure.ledger.store.bucket_store import BucketStore
from perdure.ledger.store.store import Payload
from tests.kit import some
from tests.ledger.test_bucket_store import Cloud, append, fact, found, lose, opened


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_storages, "BLOCK", 1000)
    monkeypatch.setattr(bucket_storages, "PACK", 4000)


class Model:
    """What the storages are, told by a die."""

    def __init__(self, die: random.Random) -> None:
        self.die = die
        self.images: dict[str, StorageImage] = {}

    def patch(self) -> Patch:
        """A commit of some agent, which counts from now on."""
        die, agent = self.die, f"agent {self.die.randrange(6)}"
        before = self.images.get(agent)
        if before is not None and die.random() < 0.05:
            patch = Patch(agent, 0, 0)
        else:
            number = 1 if before is None else before.number + 1
            sizes = {} if before is None else {name: len(content) for name, content in before.files.items()}
            patch = Patch(agent, 1, number, [self._part(name, sizes.get(name, 0)) for name in ("", ".wal")])
        after = image_after(before, [patch])
        self.images.pop(agent, None)
        if after is not None:
            self.images[agent] = after
        return patch

    def _part(self, name: str, size: int) -> FilePatch:
        start = self.die.choice([size, 0, self.die.randint(0, size)])
        content = self.die.randbytes(self.die.choice([0, 10, 700, 3500]))
        end = start + len(content)
        return FilePatch(name, start, content, self.die.choice([max(size, end), end, end]))


def told(store: BucketStore) -> dict[str, StorageImage]:
    agents = [f"agent {at}" for at in range(6)]
    images = {agent: image for agent in agents if (image := store.storage(agent)) is not None}
    for agent in agents:
        assert store.patches_of(agent) == (images[agent].number if agent in images else 0)
        assert store.may_have_storage(agent) or agent not in images
    return images


@pytest.mark.parametrize("seed", some(2, range(4)))
def test_each_storage_is_as_its_last_commit_left_it(tmp_path: Path, seed: int) -> None:
    die = random.Random(seed)
    cloud, model = Cloud(seed, loss=0.1), Model(die)
    done = 0
    for life in range(5):
        path = tmp_path / f"machine {die.randrange(2)}"
        store = opened(path, cloud)
        assert told(store) == model.images
        assert found(store) == list(range(1, done + 1))
        for _ in range(die.randrange(20)):
            rows = []
            if die.random() < 0.6:
                done += 1
                rows = [fact(done)]
            store.append(rows, [], [model.patch() for _ in range(die.randrange(4))])
            if die.random() < 0.15:
                store.root_s = die.choice([0, 600])
                store.checkpoint(b"m", done, [], [])
                assert told(store) == model.images
        if die.random() < 0.5:
            store.close()
        else:
            store._release()  # noqa: SLF001 - as if it were killed
        if life % 2:
            lose(path)
    assert told(opened(tmp_path / "last", cloud)) == model.images


def test_packs_of_which_little_is_left_are_written_anew_and_deleted(tmp_path: Path) -> None:
    cloud, model = Cloud(), Model(random.Random(1))
    store = opened(tmp_path / "a", cloud)
    store.root_s = store.keep_s = 0
    for seq in range(1, 25):
        store.append([fact(seq)], [], [model.patch()])
        store.checkpoint(b"m", seq, [], [])
    alive = sum(len(content) for image in model.images.values() for content in image.files.values())
    kept = sum(len(cloud.get(name)) for name in cloud.names("storage"))
    assert kept < 3 * alive + 2 * 4000
    assert told(opened(tmp_path / "b", cloud)) == model.images


def test_a_root_that_was_not_announced_leaves_a_cache_that_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, model = Cloud(), Model(random.Random(2))
    store = opened(tmp_path / "a", cloud)
    store.append([fact(1)], [], [model.patch(), model.patch()])
    store.root_s = 0

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_put_pieces", dies)
    with pytest.raises(KeyboardInterrupt):
        store.checkpoint(b"m", 1, [], [])
    store.close()
    for name in cloud.names("storage"):  # garbage, since no root names it
        cloud.remove(name)
    assert told(opened(tmp_path / "a", cloud)) == model.images


def test_a_family_is_found_whether_or_not_a_root_knows_it(tmp_path: Path) -> None:
    cloud = Cloud()
    store = opened(tmp_path / "a", cloud)
    parts = [FilePatch("", 0, b"x", 1)]
    store.append([fact(1)], [], [Patch(each, 1, 1, parts) for each in ("a", "a>b", "ab")])
    store.root_s = 0
    store.checkpoint(b"m", 1, [], [])
    store.append([], [], [Patch("a>c", 1, 1, parts), Patch("a>b", 0, 0)])
    assert sorted(store.storages_of("a")) == ["a", "a>c"]
    append(store, 2, 2)


@pytest.mark.parametrize("harm", ["flipped", "missing"])
def test_a_damaged_pack_is_named(tmp_path: Path, harm: str) -> None:
    cloud, model = Cloud(), Model(random.Random(3))
    store = opened(tmp_path / "a", cloud)
    store.append([fact(1)], [], [Patch("agent 0", 1, 1, [FilePatch("", 0, b"content", 7)])])
    store.root_s = 0
    store.checkpoint(b"m", 1, [], [])
    (name,) = cloud.names("storage")
    cloud.remove(name)
    if harm == "flipped":
        cloud.put(name, b"contenT")
    assert not model.images
    with pytest.raises(LedgerDamaged, match=name):
        opened(tmp_path / "b", cloud).storage("agent 0")


@pytest.mark.parametrize("harm", ["flipped", "missing"])
@pytest.mark.parametrize("mended", [False, True])
def test_a_damaged_pack_keeps_no_root_from_being_announced_and_costs_only_what_was_changed_in_it(
    tmp_path: Path, harm: str, *, mended: bool
) -> None:
    cloud = Cloud()
    store = opened(tmp_path / "a", cloud)
    store.root_s = store.keep_s = 0
    first = [Patch(each, 1, 1, [whole("", each.encode() * 300)]) for each in "abcde"]
    store.append([fact(1)], [], first)
    store.checkpoint(b"m", 1, [], [])
    (name,) = cloud.names("storage")
    before = cloud.get(name)
    cloud.remove(name)
    if harm == "flipped":
        cloud.put(name, before[:10] + b"?" + before[11:])  # in that of a
    store = opened(tmp_path / "b", cloud)
    store.root_s = store.keep_s = 0
    second = {
        "a": FilePatch("", 5, b"!", 300),  # changes a part
        "b": FilePatch("", 0, b"new", 3),  # replaces all
        "c": FilePatch("", 0, b"", 0),
    }
    store.append([fact(2)], [], [Patch(agent, 1, 2, [part]) for agent, part in second.items()])
    for seq in (3, 4):
        store.append([fact(seq)], [], [Patch("f", 1, seq - 2, [whole("", b"f" * seq)])])
        store.checkpoint(b"m", seq, [], [])
    store.close()
    if mended:  # by somebody who has a copy
        for each in {*cloud.names("storage")} & {name}:
            cloud.remove(each)
        cloud.put(name, before)
    again = opened(tmp_path / "c", cloud)
    assert found(again) == [1, 2, 3, 4]
    with pytest.raises(LedgerDamaged, match="storage/"):
        again.storage("a")
    images = {each: again.storage(each) for each in "bcf"}
    assert images == {
        "b": StorageImage(2, {"": b"new"}),
        "c": StorageImage(2, {}),
        "f": StorageImage(2, {"": b"ffff"}),
    }
    if mended or harm == "flipped":
        assert [again.storage(each) for each in "de"] == [StorageImage(1, {"": each.encode() * 300}) for each in "de"]
    again.append([fact(5)], [], [Patch("a", 0, 0)])
    again.append([fact(6)], [], [Patch("a", 1, 1, [whole("", b"anew")])])
    again.root_s = 0
    again.checkpoint(b"m", 6, [], [])
    again.close()
    assert opened(tmp_path / "d", cloud).storage("a") == StorageImage(1, {"": b"anew"})


@pytest.mark.parametrize("asked", ["payload", "first row"])
def test_an_answer_of_which_only_the_first_row_was_read_keeps_no_root_from_being_announced(
    tmp_path: Path, asked: str
) -> None:
    store = opened(tmp_path / "a", Cloud())
    store.root_s = 0
    store.append([], [], [Patch(agent, 1, 1, [whole("", b"1")]) for agent in "abc"])
    store.checkpoint(b"m", 0, [], [])
    store.append([fact(1)], [Payload("run 1", "output", b"large")], [Patch("a", 1, 2, [whole("", b"2")])])
    store.append([fact(2)], [], [Patch("b", 1, 2, [whole("", b"2")])])
    store.follow()
    if asked == "payload":
        assert store.payload("run 1", "output") == b"large"
    else:
        with store._reading() as con:  # noqa: SLF001 - as some question may do it
            con.execute("SELECT * FROM facts").fetchone()
    for _ in range(3):
        store.checkpoint(b"m", 2, [], [])
    assert store.patches_of("a") == 2
    store.close()
