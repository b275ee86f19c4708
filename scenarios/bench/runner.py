"""`perdure bench`: the table, measured and printed. Every group has its own data directory, cluster and process, so that a crash, a hang or
a leak affects that group only.

`python -m perdure.scenarios.bench.runner GROUP DIRECTORY LOAD [--quick] [URL]` is that process. It prints its figures as one line of
JSON. Its stderr is passed on. If it fails, the last line of that is the cause.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from perdure import actors
from perdure.ledger import BadRequest, checked_url, is_url
from perdure.scenarios.bench.figures import Failed, report, show
from perdure.scenarios.bench.measuring import Bench
from perdure.scenarios.bench.peers import PeerName, installed
from perdure.scenarios.bench.table import BUCKET, FIGURES, VERSUS
from perdure.scenarios.commands.options import AsJson

PATIENCE_S: Final = 300.0  # for one group; each takes a minute or so
PATIENCE_BESIDE_S: Final = 1_800.0  # the slowest peer needs a minute for a fan-out of a thousand on a busy machine
FAREWELL_S: Final = 10.0  # for a process that was told to end


def main(
    as_json: bool = False,
    quick: bool = False,
    only: Sequence[str] = (),
    data: str | Path | None = None,
    load: int = 0,
    versus: PeerName | None = None,
) -> bool:
    """Measure and print. Returns whether each group could be measured. What is written stays in `data`, if given; a bucket is what is
    measured.

    Raises `BadRequest` if `only` names a group that is unknown or not measured there, or if the peer, or what reaches buckets, is not
    installed.
    """
    bucket = _bucket_in(data)
    known = BUCKET if bucket else FIGURES
    for each in only:
        if each in BUCKET and not bucket:
            raise BadRequest("only", f"{each!r} is measured in a bucket; name one: --data s3://bucket/prefix")
        if each not in known:
            raise BadRequest("only", f"{each!r} is not one of {', '.join(known)}")
    if versus is not None:
        installed(versus)
    groups = [versus] if versus is not None else [group for group in known if not only or group in only]
    keep = data is not None and not bucket
    room = nullcontext(str(data)) if keep else tempfile.TemporaryDirectory(prefix="perdure-bench-")
    with room as place:
        measured = [_measure(group, Path(place), quick=quick, load=load, bucket=bucket) for group in groups]
    figures = [figure for each in measured if not isinstance(each, Failed) for figure in each]
    failures = [each for each in measured if isinstance(each, Failed)]
    told = report(figures, failures)
    if as_json:
        print(json.dumps(told))
    else:
        show(told)
    return not failures


def _bucket_in(data: str | Path | None) -> str:
    if data is None or not is_url(str(data)):
        return ""
    url = checked_url(str(data))
    actors.check_bucket("data", url)
    return url


def _measure(group: str, place: Path, *, quick: bool, load: int, bucket: str) -> list[dict[str, Any]] | Failed:
    begun_s = time.monotonic()
    _say(f"measuring {group} …")
    patience_s = PATIENCE_S if group in FIGURES else PATIENCE_BESIDE_S
    command = command_for(group, place, quick=quick, load=load, bucket=bucket)
    measured = measure_apart(group, command, patience_s, _say)
    verb = "could not measure" if isinstance(measured, Failed) else "measured"
    _say(f"{verb} {group} in {time.monotonic() - begun_s:.0f} s")
    return measured


def _say(text: str) -> None:
    # stdout has the figures only.
    print(text, file=sys.stderr, flush=True)


def command_for(group: str, place: Path, *, quick: bool, load: int = 0, bucket: str = "") -> list[str]:
    module = "perdure.scenarios.bench.runner"
    more = ["--quick"] * quick + [bucket] * bool(bucket)
    return [sys.executable, "-m", module, group, str(place.resolve()), str(load), *more]


def measure_apart(
    group: str, command: Sequence[str], patience_s: float, say: Callable[[str], None]
) -> list[dict[str, Any]] | Failed:
    """Measure a group by this command. After `patience_s` the process must print its stacks, and is ended."""
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}  # a crash and an abort print all stacks
    said: list[str] = []
    in_time = True
    with (
        tempfile.TemporaryFile("w+") as told,
        subprocess.Popen(command, stdout=told, stderr=subprocess.PIPE, text=True, env=environment) as process,
    ):
        listener = threading.Thread(target=_listen, args=(process, said, say), daemon=True)
        listener.start()
        try:
            in_time = _ends(process, patience_s)
            if not in_time:
                process.send_signal(signal.SIGABRT)
        finally:
            if not _ends(process, FAREWELL_S):
                process.kill()
        listener.join(FAREWELL_S)
        if process.wait() == 0:
            told.seek(0)
            figures: list[dict[str, Any]] = json.loads(told.readlines()[-1])
            return figures
    return Failed(group, _cause(process.returncode, said) if in_time else f"it was not done within {patience_s:g} s")


def _listen(process: subprocess.Popen[str], said: list[str], say: Callable[[str], None]) -> None:
    for line in process.stderr or ():
        say(line.rstrip())
        said.extend([line.strip()] if line.strip() else [])


def _ends(process: subprocess.Popen[str], patience_s: float) -> bool:
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _cause(code: int, said: list[str]) -> str:
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return said[-1] if said else f"its process ended with {code}, and without a word"


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: shows that it works, measures nothing.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this group of figures; repeatable.")] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Keep what is written, in this directory; or measure this bucket.", metavar="DIR|URL"),
    ] = None,
    load: Annotated[
        int, typer.Option(min=0, max=64, help="Processes that only compute, beside the group `busy-host`.")
    ] = 0,
    versus: Annotated[
        PeerName | None, typer.Option(help="Awaited runs and a fan-out beside another system, in the same run.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure throughput, latency and recovery, each beside its baseline in the same run.

    Each group has a process of its own. A group that cannot be measured is reported with its cause; the others go on, and the exit code
    is 1.

    Each figure has its unit. A whole measurement takes some minutes and needs an idle machine.

    With --data s3://bucket/prefix the group `bucket` is measured, alone: runs there, beside a directory. They stay in the bucket, under a
    prefix of their own.

    --versus measures Perdure, another system and plain Ray calls in turns: awaited children one after the other, and 1,000 instant children
    at once. Medians of five are compared. The other system must be installed beside Perdure: `pip install 'perdure[dbos]'`, or
    `pip install 'perdure[restate]'` with `npm install @restatedev/restate-server`. If it is not, the exit code is 2.

    Examples:
        perdure bench --quick
        perdure bench --only fan-out --only cluster-death --json
        perdure bench --only busy-host --load 8
        perdure bench --data s3://bucket/prefix
        perdure bench --versus dbos --json
    """
    if data is not None and Path(data).is_file():
        raise BadRequest("data", f"{data!r} is a file; name a directory, or a bucket")
    if versus is not None and (only or load):
        raise BadRequest("versus", "it has figures of its own, so it goes without --only and --load")
    if versus is not None and data is not None and is_url(data):
        raise BadRequest("versus", "other systems are measured on a disk, so it goes without a bucket")
    if not main(as_json, quick, only or (), data, load, versus):
        raise typer.Exit(1)


if __name__ == "__main__":
    name, where, load, *more = sys.argv[1:]
    group = (FIGURES | BUCKET)[name] if name not in VERSUS else VERSUS[PeerName(name)]
    url = next(filter(is_url, more), "")
    print(json.dumps(group.measure(Bench(Path(where), "--quick" in more, _say, int(load), url))))
