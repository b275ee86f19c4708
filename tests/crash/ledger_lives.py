"""What a ledger's store is put through, and what must be true of its directory afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import accumulate, cycle
from pathlib import Path

from perdure.ledger.errors import LedgerDamaged, LedgerError
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.integrity import repair
from perdure.ledger.store.store import FactRow, Payload, Record
from tests.crash.recording import Say, Workload, latest

_FACTS = 8  # of each run
_SIZES = (1, 3, 1, 2, 8, 1, 1)  # of commits, in turn


def fact(seq: int) -> FactRow:
    subject, frame = divmod(seq - 1, _FACTS)
    return FactRow(seq, 1_000 + seq, f"r{subject}", frame, "Happened", b"fact %d" % seq * (seq % 50))


def payload(last: int) -> list[Payload]:
    """What comes with a commit that ends with this fact: for some of them a payload of several pages."""
    return [Payload(fact(last).subject, "input", b"%d " % last * 5_000)] if last % 13 == 0 else []


def record(number: int, upto: int) -> Record:
    first, last = number * _FACTS + 1, min(number * _FACTS + _FACTS, upto)
    live = last == upto
    columns = ("running" if live else "completed", "m:T", "", first, None if live else last, first, last)
    return Record("runs", f"r{number}", live, columns, b"run")


def live(directory: Path, say: Say, upto: int, checkpoints: dict[int, list[str]], *, close: bool = True) -> None:
    """Append up to some fact; checkpoint after others, forgetting runs."""
    store = DuckDBStore(directory)
    say("starting 0")
    last = last_of(store)
    say(f"started {last}")
    while last < upto:
        first, last = last + 1, last + _size(last)
        say(f"appending {last}")
        store.append([fact(seq) for seq in range(first, last + 1)], payload(last))
        say(f"appended {last}")
        for at in [at for at in checkpoints if at <= last]:
            forgotten = checkpoints.pop(at)
            say(f"checkpointing {last} {len(forgotten)}")
            kept = [record(number, last) for number in range(len(forgotten), (last - 1) // _FACTS + 1)]
            store.checkpoint(b"%d" % last, last, kept, forgotten)
            say(f"checkpointed {last} {len(forgotten)}")
    if close:
        store.close()


def last_of(store: DuckDBStore) -> int:
    boot = store.boot()
    return boot.rows[-1].seq if boot.rows else int(boot.meta or 0)


def _size(last: int) -> int:
    """How many facts the commit after this fact has."""
    return next(end for end in accumulate(cycle(_SIZES)) if end > last) - last


def judge(directory: Path, said: list[str]) -> str:
    """What is wrong with the directory: a start must find all that was acknowledged, once and in order, and must go on from there."""
    before = {path.name for path in directory.glob("*")}
    try:
        with closing(DuckDBStore(directory)) as store:
            boot = store.boot()
            kept_aside = {path.name for path in directory.glob("*.damaged-*")} - before
            untold = [name for name in kept_aside if not any(name in each for each in boot.findings)]
            meta = int(boot.meta or 0)
            last = boot.rows[-1].seq if boot.rows else meta
            wrong = _compared(store, last, said) or _untold(untold)
            if [row.seq for row in boot.rows] != list(range(meta + 1, last + 1)):
                wrong = f"wrong: the boot reads {[row.seq for row in boot.rows]} after a snapshot of {meta}"
            if meta < latest(said, "checkpointed"):
                wrong = f"lost: the snapshot of {latest(said, 'checkpointed')}, there is that of {meta}"
            if wrong or not (boot.findings or len(said) % 3 == 0):  # a second start takes as long as the first
                return wrong
            store.append([fact(last + 1)], payload(last + 1))  # which another boot after a power cut may have to find
        with closing(DuckDBStore(directory)) as store:
            again = store.boot()
            if again.findings or again.rows[-1:] != [fact(last + 1)]:
                return f"wrong: the next start reads {again.rows[-1:]} and finds {again.findings}"
            return ""
    except LedgerDamaged as refusal:
        return f"{'unreadable' if 'DuckDB' in refusal.problem else 'refused'}: {refusal}"
    except LedgerError as refusal:
        return f"refused: {refusal}"


def _compared(store: DuckDBStore, last: int, said: list[str]) -> str:
    known = max(latest(said, "appended"), latest(said, "started"))
    if last < known:
        return f"lost: {known} facts were acknowledged or shown to a start, {last} are there"
    rows = [
        FactRow(*row) for row in store.rows("SELECT seq, at_ms, subject, frame, kind, body FROM facts ORDER BY seq", [])
    ]
    for forgotten in {latest(said, "checkpointed", 2), latest(said, "checkpointing", 2)}:
        expected = [fact(seq) for seq in range(1 + forgotten * _FACTS, last + 1)]
        if rows == expected:
            break
    else:
        return f"wrong: up to {last} there are {[row.seq for row in rows]}"
    for end in _ends(last):
        if (
            end > forgotten * _FACTS
            and payload(end)
            and store.payload(fact(end).subject, "input") != payload(end)[0].body
        ):
            return f"wrong: the payload of {end}"
    return ""


def _ends(last: int) -> Iterator[int]:
    end = 0
    while end < last:
        end += _size(end)
        yield end


def _untold(names: list[str]) -> str:
    return f"silent: no finding names {names}" if names else ""


def judge_first_start(directory: Path, said: list[str]) -> str:
    """As `judge`; but a directory that is refused may be one that `perdure doctor --repair` mends."""
    verdict = judge(directory / "data", said)
    if verdict.startswith(("refused", "unreadable")):
        repair(directory / "data")
        again = judge(directory / "data", said)
        return again and f"{verdict}; and after a repair {again}"
    return verdict


LEDGER = Workload(
    "ledger",
    (
        lambda directory, say: live(directory, say, 40, {16: []}, close=False),
        lambda directory, say: live(directory, say, 72, {60: ["r0"]}),
        lambda directory, say: live(directory, say, 90, {}),
    ),
    judge,
)
FIRST_START = Workload(
    "first-start",
    (lambda directory, say: live(directory / "data", say, 4, {3: []}),),
    judge_first_start,
)
