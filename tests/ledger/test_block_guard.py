"""A checkpoint that a power cut interrupts, at each place where it may: the file can be read, and nothing is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from perdure.ledger.block_guard import BlockGuard
from perdure.ledger.codec import unpack
from perdure.ledger.duckdb_format import BLOCKS_AT, HEADERS, checksum, is_whole

ROWS = [(number, f"row {number}") for number in range(40)]
SECTOR = 512
Files = dict[str, bytes]


def connected(path: Path) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect(config={"threads": 1, "async_threads": 0})
    con.execute(f"ATTACH '{path}' AS guarded (TYPE duckdb, BLOCK_SIZE 16384)")
    con.execute("USE guarded")
    return con


def files(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Files]:
    """The files just before a checkpoint, guarded, and after it."""
    folder = tmp_path_factory.mktemp("guarded")
    guard = BlockGuard(folder / "a.db", fsync=False)
    with closing(connected(folder / "a.db")) as con:
        con.execute("PRAGMA disable_checkpoint_on_shutdown")
        con.execute("CREATE TABLE rows (number BIGINT, words VARCHAR)")
        for row in ROWS:
            con.execute("CHECKPOINT")
            con.execute("INSERT INTO rows VALUES ($1, $2)", row)
        with guard.around(con, "guarded"):
            before = files(folder)
            con.execute("CHECKPOINT")
        after = files(folder)
    guard.close()
    assert sorted(before) == ["a.db", "a.db.blocks", "a.db.wal"]
    assert sorted(after) == ["a.db"]
    return before, after


def read(folder: Path, state: Files, *, guarded: bool = True) -> list[tuple[int, str]]:
    """What a start after this state of the files finds."""
    for name, content in state.items():
        (folder / name).write_bytes(content)
    if guarded:
        guard = BlockGuard(folder / "a.db")
        guard.mend()
        guard.close()
        assert not (folder / "a.db.blocks").exists()
    with closing(connected(folder / "a.db")) as con:
        return con.execute("FROM rows ORDER BY number").fetchall()


def torn(before: Files, after: Files) -> Iterator[bytes]:
    """The database with one sector of what the checkpoint wrote before its header, and with all up to that one."""
    new = after["a.db"]
    old = before["a.db"].ljust(len(new), b"\0")
    for at in range(BLOCKS_AT, len(new), SECTOR):
        end = at + SECTOR
        if old[at:end] != new[at:end]:
            yield old[:at] + new[at:end] + old[end:]
            yield old[:BLOCKS_AT] + new[BLOCKS_AT:end] + old[end:]


def test_a_checkpoint_that_did_not_end_leaves_a_file_that_can_be_read(
    states: tuple[Files, Files], tmp_path: Path
) -> None:
    before, after = states
    unreadable = 0
    for number, database in enumerate(torn(before, after)):
        for guarded in (False, True):
            folder = tmp_path / f"{number} {guarded}"
            folder.mkdir()
            try:
                assert read(folder, {**before, "a.db": database}, guarded=guarded) == ROWS
            except duckdb.Error:
                assert not guarded
                unreadable += 1
    assert unreadable, "the checkpoint wrote no block in place"


def test_a_header_that_is_half_written_is_put_back(states: tuple[Files, Files], tmp_path: Path) -> None:
    before, after = states
    old, new = before["a.db"], after["a.db"]
    at = next(at for at, size in HEADERS if old[at : at + size] != new[at : at + size])
    assert (
        read(tmp_path, {**before, "a.db": old[:at] + new[at : at + 8] + old[at + 8 : BLOCKS_AT] + new[BLOCKS_AT:]})
        == ROWS
    )


def test_nothing_is_put_back_after_a_checkpoint_that_ended(states: tuple[Files, Files], tmp_path: Path) -> None:
    before, after = states
    assert read(tmp_path, {**after, "a.db.blocks": before["a.db.blocks"]}) == ROWS
    flipped = bytearray(after["a.db"])
    flipped[BLOCKS_AT + 100] ^= 1
    with pytest.raises(duckdb.Error, match="checksum"):
        read(tmp_path, {"a.db": bytes(flipped), "a.db.blocks": before["a.db.blocks"]})


def test_what_was_saved_by_halves_is_thrown_away_for_its_checkpoint_had_not_begun(
    states: tuple[Files, Files], tmp_path: Path
) -> None:
    before, _ = states
    saved = before["a.db.blocks"]
    for part in (b"", saved[:10], saved[:5_000], saved[:5_000].ljust(len(saved), b"\0")):
        assert read(tmp_path, {**before, "a.db.blocks": part}) == ROWS


def test_another_file_in_the_place_of_the_guarded_one_stays_as_it_is(
    states: tuple[Files, Files], tmp_path: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with closing(connected(other / "a.db")) as con:
        con.execute("CREATE TABLE rows AS SELECT 7 AS number, 'seven' AS words")
    state = files(other)
    assert read(other, {**state, "a.db.blocks": states[0]["a.db.blocks"]}) == [(7, "seven")]


def test_a_whole_block_is_never_replaced(states: tuple[Files, Files], tmp_path: Path) -> None:
    before, _ = states
    at, piece = [each for each in unpack(before["a.db.blocks"][16:]) if each[0] >= BLOCKS_AT][-1]
    rest = bytes([piece[8] ^ 1]) + piece[9:]
    whole = checksum(rest).to_bytes(8, "little") + rest
    content = before["a.db"][:at] + whole + before["a.db"][at + len(piece) :]
    (tmp_path / "a.db").write_bytes(content)
    (tmp_path / "a.db.blocks").write_bytes(before["a.db.blocks"])
    with closing(BlockGuard(tmp_path / "a.db")) as guard:
        guard.mend()
    assert (tmp_path / "a.db").read_bytes() == content


def test_the_checksum_is_that_of_duckdb(states: tuple[Files, Files]) -> None:
    database = states[1]["a.db"]
    places = [(at, 4_096) for at in range(0, BLOCKS_AT, 4_096)] + [
        (at, 16_384) for at in range(BLOCKS_AT, len(database), 16_384)
    ]
    assert all(is_whole(database[at : at + size]) for at, size in places)
    assert len({checksum(database[: 80 + rest]) for rest in range(17)}) == 17


def test_the_lock_of_duckdb_is_kept_until_the_guard_is_closed(tmp_path: Path) -> None:
    guard = BlockGuard(tmp_path / "a.db")
    with closing(connected(tmp_path / "a.db")) as con, guard.around(con, "guarded"):
        con.execute("CHECKPOINT")
        code = f"import duckdb; duckdb.connect({str(tmp_path / 'a.db')!r})"
        other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert f"PID {os.getpid()}" in other.stderr
    guard.close()
