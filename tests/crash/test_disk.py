"""The model of the disk keeps for certain what was synchronised, and nothing else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.disk import Change, Disk, Image

A, B, FOLDER = 1, 2, 0  # inodes


def change(op: str, path: str = "", to: str = "", inode: int = A, at: int = 0, data: bytes = b"") -> Change:
    return Change(op, inode, at, 0, f"/d{path}", f"/d{to}" if to else "", data)


MADE = (change("o", "/a"), change("w", data=b"new"))
SYNC, SYNC_FOLDER = change("s"), change("S", inode=FOLDER)
RENAMED = change("r", "/a", "/b")


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        (MADE, {}),
        ((*MADE, SYNC_FOLDER), {"/a": b""}),
        ((*MADE, SYNC), {"/a": b"new"}),
        ((*MADE, SYNC, change("w", at=2, data=b"er")), {"/a": b"new"}),
        ((*MADE, SYNC, change("t", at=1)), {"/a": b"new"}),
        ((*MADE, SYNC, change("t", at=1), SYNC), {"/a": b"n"}),
        ((*MADE, SYNC, RENAMED), {"/a": b"new"}),
        ((*MADE, SYNC, RENAMED, SYNC_FOLDER), {"/b": b"new"}),
        ((*MADE, SYNC, change("u", "/a")), {"/a": b"new"}),
        ((*MADE, SYNC, change("u", "/a"), SYNC_FOLDER), {}),
        ((*MADE, SYNC, change("u", "/a"), change("o", "/a", inode=B), change("s", inode=B)), {"/a": b""}),
        ((change("m", "/f"), change("o", "/f/a"), SYNC), {"/f": None, "/f/a": b""}),
        ((change("m", "/f"), SYNC_FOLDER, change("o", "/f/a")), {"/f": None}),
        ((*MADE, SYNC, change("l", "/a", "/b")), {"/a": b"new"}),
        ((*MADE, SYNC, change("l", "/a", "/b"), SYNC_FOLDER), {"/a": b"new", "/b": b"new"}),
    ],
)
def test_a_power_cut_keeps_for_certain_what_was_synchronised(changes: tuple[Change, ...], kept: Image) -> None:
    disk = Disk(Path("/d"))
    for each in changes:
        disk.apply(each)
    assert disk.after_power_cut("none", random.Random(0)) == kept


def test_what_was_not_synchronised_may_be_there_in_part_and_is_there_after_a_kill() -> None:
    disk = Disk(Path("/d"))
    for each in (*MADE, SYNC, change("w", data=b"x" * 10_000)):
        disk.apply(each)
    assert disk.image() == {"/a": b"x" * 10_000}
    assert disk.image(change("w", data=b"yyyy"), keep=3) == {"/a": b"yyy" + b"x" * 9_997}
    assert disk.after_power_cut("zeros", random.Random(0)) == {"/a": b"new" + bytes(9_997)}
    found = {disk.after_power_cut("pages", random.Random(seed))["/a"] for seed in range(40)}
    assert {b"new", b"x" * 10_000, b"new" + bytes(4_093) + b"x" * 5_904} <= found


def test_each_page_may_be_on_the_disk_as_it_was_at_any_moment_and_a_file_as_it_was_at_one() -> None:
    page = 4_096
    disk = Disk(Path("/d"))
    for each in (*MADE, SYNC, *(change("w", at=at, data=b"%d" % n * page) for n in (1, 2) for at in (0, page))):
        disk.apply(each)
    seen = {how: {disk.after_power_cut(how, random.Random(n))["/a"] for n in range(200)} for how in ("pages", "moment")}
    one, two = b"1" * page, b"2" * page
    assert {b"new", one + two, two + one, two + two, b"new".ljust(page, b"\0") + one} <= seen["pages"]
    assert seen["moment"] == {b"new", one, one + one, two + one, two + two}


def test_a_sync_that_fails_takes_what_it_was_to_keep_and_the_next_one_passes_over_it() -> None:
    disk = Disk(Path("/d"))
    for each in (*MADE, SYNC, change("w", data=b"lost"), change("x"), change("w", at=5_000, data=b"kept"), SYNC):
        disk.apply(each)
    content = disk.after_power_cut("none", random.Random(0))["/a"]
    assert content is not None
    assert (content[:4], content[5_000:]) == (b"new\0", b"kept")
    assert disk.image()["/a"] == b"lost" + bytes(4_996) + b"kept"
