"""Booting a ledger with a million ended runs, and what one commit takes. Each boot has its own process, without Ray.

`python -m perdure.scenarios.bench.ledger DIRECTORY` is that process: it boots once, and prints the seconds and its peak of memory.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from io import FileIO
from pathlib import Path

from perdure import Limits
from perdure.ledger import (
    Alarm,
    Ended,
    FactRow,
    HostView,
    Progress,
    Record,
    Released,
    Request,
    Stimulus,
    SupervisorStarted,
    Up,
    View,
    Waiting,
    apply_fact,
    assign_hosts,
    decide,
    digest_of,
    dirty_records,
    expand_rows,
    meta_of,
    pack,
    record_fact,
    restore,
    run_from,
    run_record,
)
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.scenarios.bench.figures import Compared, Found
from perdure.scenarios.bench.measuring import Bench, took_ms

CHUNK = 50_000
WRITE_BYTES = 350  # of a commit with one request
AT_MS = 1_750_000_000_000
HOST = "host"
TEMPLATE = "retained-0000000"
LIMITS = Limits(hosts_max=1, hosts_warm=1, pack_max=1_000_000)


def boot(bench: Bench) -> Found:
    retained, live, repeats = bench.size(1_000_000, 50_000), bench.size(1_000, 100), bench.size(5, 3)
    told: dict[int, list[dict[str, float]]] = {}
    for count in (0, retained):
        place = bench.data / f"ledger-{count}"
        build(place, count, live, bench.say)
        told[count] = [boot_apart(place) for _ in range(repeats)]
        if any(each["live"] != live for each in told[count]):
            raise RuntimeError(f"a boot did not find the {live} live runs: {told[count]}")
    empty, full = told[0], told[retained]
    return Found(
        *(
            Compared([each[key] for each in full], statistics.median(each[key] for each in empty))
            for key in ("seconds", "peak_mb")
        ),
        retained=retained,
        live=live,
    )


def commit(bench: Bench) -> Found:
    # In turns with bare writes of as many bytes that are synchronised.
    count, repeats = bench.size(2_000, 200), bench.size(5, 3)
    store, view = DuckDBStore(bench.data / "commit"), View()
    store.boot()
    commits, writes = [], []
    with Path(bench.data, "plain").open("wb", buffering=0) as file:
        file.write(bytes(count * repeats * WRITE_BYTES))
        os.fsync(file.fileno())
        file.seek(0)
        for repeat in range(repeats):
            runs = [f"run-{repeat}-{number}" for number in range(count)]
            rows = [list(_lived(view, run_id, [_request(run_id)])) for run_id in runs]
            times = [(took_ms(partial(store.append, each, [])), took_ms(partial(_write, file))) for each in rows]
            commits.append(statistics.median(ours for ours, _ in times))
            writes.append(statistics.median(plain for _, plain in times))
    store.close()
    beyond = [ours - plain for ours, plain in zip(commits, writes, strict=True)]
    return Found(Compared(commits, statistics.median(writes)), beyond)


def build(
    place: Path, retained: int, live: int, say: Callable[[str], None] = print, waiting: int = 0, armed: int = 0
) -> None:
    """Fill a ledger like a supervisor, but many runs at once. Live runs also have facts after the snapshot; those that wait for an event
    without a process have none, and neither have agents that sleep with an alarm."""
    store, view = DuckDBStore(place, fsync=False), View()
    store.boot()
    store.append([record_fact(view, SupervisorStarted(1, {}), AT_MS)], [])
    facts, record = _template()
    for first in range(0, retained, CHUNK):
        numbers = range(first, min(first + CHUNK, retained))
        store.append(list(_copied_facts(facts, numbers, view.seq)), [])
        records = list(_copied_records(record, len(facts), numbers, view.seq))
        view.seq += len(facts) * len(numbers)
        store.checkpoint(meta_of(view), view.seq, records, [])
        if first and first % (CHUNK * 5) == 0:
            say(f"built {first:,} retained runs")
    view.hosts[HOST] = HostView(HOST, None, up=True)
    for first in range(0, waiting, CHUNK):
        numbers = range(first, min(first + CHUNK, waiting))
        waits = map("waiting-{:07d}".format, numbers)
        store.append([row for each in waits for row in _lived(view, each, [_request(each), Up, _waiting])], [])
    sleepers = map("sleepyhead-{}@perdure.bench:Sleepyhead".format, range(armed))
    store.append([row for name in sleepers for row in _asleep(view, name)], [])
    runs = [f"live-{number:07d}" for number in range(live)]
    store.append([row for run_id in runs for row in _lived(view, run_id, [_request(run_id)])], [])
    store.checkpoint(meta_of(view), view.seq, dirty_records(view), [])
    store.append([row for run_id in runs for row in _lived(view, run_id, [Up, _progress])], [])
    store.close()


def _write(file: FileIO) -> None:
    file.write(bytes(WRITE_BYTES))
    os.fdatasync(file.fileno())


def boot_once(place: Path) -> dict[str, float]:
    # The peak of memory of this process is that of the boot.
    begun_s = time.perf_counter()
    store = DuckDBStore(place)
    view = restore(store.boot())
    took_s = time.perf_counter() - begun_s
    armed = sum(activation.alarm_at_ms > 0 for activation in view.agents.values())
    store.close()
    lines = Path("/proc/self/status").read_text().splitlines()
    peak_mb = next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    return {"seconds": took_s, "peak_mb": peak_mb, "live": len(view.runs), "armed": armed}


def boot_apart(place: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "perdure.scenarios.bench.ledger", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    told: dict[str, float] = json.loads(done.stdout)
    return told


# one run, and copies of it

INPUT = pack({"path": "a/file/of/some/length.py", "copy_number": 0})
OUTPUT = pack({"definitions": 10, "branches": 20, "lines": 300, "digest": "0123456789abcd"})
Step = Stimulus | Callable[[str, int], Stimulus]


def _request(run_id: str) -> Request:
    return Request(run_id, "perdure.census:Reader", "", "", digest_of(INPUT), INPUT, {}, 0, wait=False)


def _waiting(run_id: str, incarnation: int) -> Stimulus:
    return Waiting(run_id, incarnation, 1, ["go"], math.inf, math.inf, by_wall=False, released=True, sequence=1)


def _progress(run_id: str, incarnation: int) -> Stimulus:
    return Progress(run_id, incarnation, pack({"fraction": 0.2, "phase": "reading", "message": "40000 bytes"}))


def _ended(run_id: str, incarnation: int) -> Stimulus:
    return Ended(run_id, incarnation, OUTPUT, "", None, released=True)


def _lived(view: View, run_id: str, steps: list[Step]) -> Iterator[FactRow]:
    for step in steps:
        stimulus = step if isinstance(step, Request) else step(run_id, view.runs[run_id].incarnation)  # type: ignore[operator]
        yield from expand_rows(apply_fact(view, decide(view, stimulus, AT_MS, LIMITS), AT_MS))
        yield from expand_rows(apply_fact(view, assign_hosts(view, AT_MS, LIMITS), AT_MS))
    view.touched.clear()


def _asleep(view: View, name: str) -> Iterator[FactRow]:
    view.want(name)
    yield from expand_rows(apply_fact(view, assign_hosts(view, AT_MS, LIMITS), AT_MS))
    life = view.agents[name].incarnation
    for said in (Alarm(name, life, AT_MS + 86_400_000, None), Released(name, life)):
        yield from expand_rows(apply_fact(view, decide(view, said, AT_MS, LIMITS), AT_MS))


def _template() -> tuple[list[FactRow], Record]:
    view = View()
    view.hosts[HOST] = HostView(HOST, None, up=True)
    facts = list(_lived(view, TEMPLATE, [_request(TEMPLATE), Up, _ended]))
    record = next(record for record in dirty_records(view) if record.table == "runs")
    return facts, record


def _copied_facts(facts: list[FactRow], numbers: range, seq: int) -> Iterator[FactRow]:
    # All ids have one length, so they can be replaced.
    for number in numbers:
        run_id = f"retained-{number:07d}"
        for fact in facts:
            seq += 1
            yield fact._replace(seq=seq, subject=run_id, body=fact.body.replace(TEMPLATE.encode(), run_id.encode()))


def _copied_records(record: Record, facts_each: int, numbers: range, seq: int) -> Iterator[Record]:
    for place, number in enumerate(numbers):
        run_id = f"retained-{number:07d}"
        run = run_from(record._replace(body=record.body.replace(TEMPLATE.encode(), run_id.encode())))
        first_seq = seq + place * facts_each + 1
        yield run_record(replace(run, first_seq=first_seq, last_seq=first_seq + facts_each - 1))


if __name__ == "__main__":
    print(json.dumps(boot_once(Path(sys.argv[1]))))
