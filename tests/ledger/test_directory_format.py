"""One number is the format of a directory. Another one is refused in words, and a migration brings an older one to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.actors.ray_world.cluster_record import begin_directory
from perdure.ledger import LedgerDamaged, LedgerTooNew, LedgerTooOld
from perdure.ledger.directory_format import FORMAT, FORMAT_FILE, LEDGER, MIGRATIONS, bring_up_to_date, check_format
from perdure.ledger.errors import LedgerLocked
from perdure.ledger.store.lock import Lock
from tests.ledger.directories import formatted

WORD = f"{FORMAT}\n".encode()
Job = Callable[[Path], object]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The two files of a directory with a ledger."""
    begin_directory(tmp_path)
    (tmp_path / LEDGER / "ledger.db").touch()
    return tmp_path / FORMAT_FILE, tmp_path / LEDGER / FORMAT_FILE


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("left", [None, b"", b"\0\0", b"\n"])
def test_one_that_is_missing_or_torn_is_made_again_from_the_other(
    files: tuple[Path, Path], tmp_path: Path, left: bytes | None, which: int
) -> None:
    files[which].unlink() if left is None else files[which].write_bytes(left)
    check_format(tmp_path)
    begin_directory(tmp_path)
    assert [file.read_bytes() for file in files] == [WORD, WORD]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("bit", range(16))
def test_no_flipped_bit_makes_it_another_format(files: tuple[Path, Path], tmp_path: Path, bit: int, which: int) -> None:
    content = bytearray(WORD)
    content[bit // 8] ^= 1 << bit % 8
    files[which].write_bytes(content)
    if content[:1] == WORD[:1] and content[1:].isspace():
        check_format(tmp_path)
        return
    for _ in range(2):
        with pytest.raises(LedgerDamaged, match="is made again from the other") as refused:
            begin_directory(tmp_path)
        assert all(str(file) in refused.value.problem for file in files)
    files[which].unlink()
    begin_directory(tmp_path)
    assert files[which].read_bytes() == WORD


@pytest.mark.parametrize("said", [b"", b"\xff", b"four"])
def test_a_directory_that_says_no_number_is_refused(files: tuple[Path, Path], tmp_path: Path, said: bytes) -> None:
    for file in files:
        file.write_bytes(said)
    for job in (check_format, begin_directory, bring_up_to_date):
        with pytest.raises(LedgerDamaged, match=r"should say the number of its format, and say .*from a backup"):
            job(tmp_path)
    assert [file.read_bytes() for file in files] == [said, said]


def test_a_ledger_without_a_format_is_no_new_directory(tmp_path: Path) -> None:
    (tmp_path / LEDGER).mkdir()
    (tmp_path / LEDGER / "ledger.journal.3").touch()
    with pytest.raises(LedgerDamaged, match="say nothing"):
        begin_directory(tmp_path)
    assert not (tmp_path / FORMAT_FILE).exists()


@pytest.mark.parametrize("job", [check_format, begin_directory, bring_up_to_date])
def test_a_directory_that_is_new_or_has_only_folders_can_be_begun(tmp_path: Path, job: Job) -> None:
    job(tmp_path / "none")
    for folder in (LEDGER, "agents/lost+found", "code"):
        (tmp_path / folder).mkdir(parents=True)
    job(tmp_path)


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (
            FORMAT - 1,
            LedgerTooOld,
            f"an older Perdure wrote it: its format is {FORMAT - 1}, and this Perdure reads format",
        ),
        (
            FORMAT + 1,
            LedgerTooNew,
            f"a newer Perdure wrote it: its format is {FORMAT + 1}, and this Perdure reads format",
        ),
    ],
)
def test_another_format_is_refused_in_words(tmp_path: Path, number: int, kind: type[Exception], words: str) -> None:
    formatted(tmp_path, number)
    for job in (check_format, begin_directory):
        with pytest.raises(kind, match=f"{words} {FORMAT} — keep it with the Perdure that wrote it, or begin a new"):
            job(tmp_path)
    bring_up_to_date(tmp_path)
    assert (tmp_path / FORMAT_FILE).read_text() == f"{number}\n"


@pytest.fixture
def migrated(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two migrations are registered, which add to a file. Returns what they did; before a word of it, the next one dies."""
    did: list[str] = []

    def migration(name: str) -> Job:
        def migrate(data: Path) -> None:
            did.append(name)
            if did[-2:] == ["die", name]:
                raise KeyboardInterrupt
            with (data / "story").open("a") as file:
                file.write(f"{name} ")

        return migrate

    for number in (FORMAT - 2, FORMAT - 1):
        monkeypatch.setitem(MIGRATIONS, number, migration(f"from {number}"))
    return did


def test_an_older_directory_is_brought_up_one_format_after_the_other_and_each_once(
    tmp_path: Path, migrated: list[str]
) -> None:
    formatted(tmp_path, FORMAT - 2)
    with pytest.raises(LedgerTooOld, match=r"open it once with .* of this Perdure, which brings it up to date"):
        check_format(tmp_path)
    for _ in range(2):
        bring_up_to_date(tmp_path)
        check_format(tmp_path)
        assert migrated == [f"from {FORMAT - 2}", f"from {FORMAT - 1}"]
    assert (tmp_path / "story").read_text() == f"from {FORMAT - 2} from {FORMAT - 1} "
    begin_directory(tmp_path)
    assert (tmp_path / LEDGER / FORMAT_FILE).read_bytes() == WORD


def test_a_migration_that_dies_is_begun_again_where_it_was(tmp_path: Path, migrated: list[str]) -> None:
    formatted(tmp_path, FORMAT - 1)
    migrated.append("die")
    with pytest.raises(KeyboardInterrupt):
        bring_up_to_date(tmp_path)
    with pytest.raises(LedgerTooOld):
        check_format(tmp_path)
    bring_up_to_date(tmp_path)
    assert migrated == ["die", *[f"from {FORMAT - 1}"] * 2]
    check_format(tmp_path)


@pytest.mark.usefixtures("migrated")
def test_a_directory_in_use_is_not_migrated(tmp_path: Path) -> None:
    formatted(tmp_path, FORMAT - 1)
    lock = Lock(tmp_path / LEDGER)
    with pytest.raises(LedgerLocked, match="is using this ledger"):
        bring_up_to_date(tmp_path)
    lock.release()
    assert not (tmp_path / "story").exists()
