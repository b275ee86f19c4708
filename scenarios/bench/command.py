"""`perdure bench`: the table of quantities by the workload that finds them, measured and printed.

Every group has its own data directory, cluster and process, so that a crash, a hang or a leak affects that group only.
`python -m perdure.scenarios.bench.command GROUP DIRECTORY LOAD [--quick] [URL]` is that process. It prints its figures as one line of
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
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from perdure import BadRequest, actors
from perdure.ledger import checked_url, is_url
from perdure.scenarios.bench import chats, deaths, gateway, growth, ledger, runs
from perdure.scenarios.bench.figures import Failed, Group, Measure, at_least, at_most, report, show
from perdure.scenarios.bench.measuring import Bench
from perdure.scenarios.bench.peers import PEERS, PeerName, installed
from perdure.scenarios.commands.options import AsJson

PLAIN: Final = "plain Ray calls/s"
RESTART: Final = "plain Ray actor made anew by Ray"
CLOUDFLARE: Final = "Cloudflare, measured"  # their runtime, on a similar machine
WRITERS: Final = "{count:,} agents on one host that write {times} times each"
ITEMS: Final = "{total:,} detached items of two steps, a milestone and a second's sleep"
LOST: Final = "the same: attempts beyond the first, and hosts lost"
BOOT: Final = "boot with {retained:,} retained and {live:,} live runs"
AWAKE: Final = "memory of one of {count:,} agents that are awake and at rest"
THERE: Final = "the same on a directory"
BUSY: Final = "{agents:,} busy agents, a turn of six steps in {seconds} s each"
STREAMS: Final = "{count:,} chat children that stream 20 chunks in 10 s"
SLEEPERS: Final = "{count:,} children that sleep {seconds} s"
RINGING: Final = "alarms/s of sleeping agents: late"
GROWING: Final = [name.replace("{size}", "{size:,}") for name in growth.MEMBERS]

FIGURES: Final[dict[str, Group]] = {
    "awaited": Group(
        runs.awaited,
        Measure("awaited run, p50", "ms", at_most(5), "round trip of a plain Ray call"),
        Measure("awaited run, p99", "ms", at_most(20), "round trip of a plain Ray call"),
    ),
    "fan-out": Group(
        runs.fan_out,
        Measure("fan-out of {count:,} instant children", "runs/s", at_least(20_000), PLAIN),
        Measure("fan-out of {count:,} instant children, ratio to plain Ray calls", "×"),
        Measure(
            "fan-out of {count:,} instant children, ratio to one new Ray actor each", "×", None, "new Ray actors/s"
        ),
    ),
    "detached": Group(
        runs.detached,
        Measure("{count:,} detached runs with a handler that updates state", "deliveries/s", at_least(5_000), PLAIN),
    ),
    "sustained": Group(
        runs.sustained,
        Measure("{times} fan-outs of {count:,} in a row", "runs/s", None, "the first three"),
        Measure("the later half, as a share of the first three", "", at_least(0.8)),
        Measure("longest turn of the supervisor, beside its commit", "ms", at_most(100)),
        Measure("longest wait of a question", "ms", None, "median"),
    ),
    "busy-host": Group(
        runs.busy_host,
        Measure(f"{WRITERS}: a call of another agent there, p50", "ms"),
        Measure("the same, p99", "ms", at_most(100), "the same call on an idle host"),
        Measure("the same: writes", "writes/s"),
        Measure(LOST, "", at_most(0)),
        Measure(f"{ITEMS}, all handled", "s"),
        Measure(LOST, "", at_most(0)),
    ),
    "sleepers": Group(
        runs.sleepers,
        Measure(f"{SLEEPERS}, all done", "s", at_most(12), "one sleep"),
        Measure(f"{SLEEPERS}, memory above idle", "MB", at_most(1_536), "{count:,} Ray actors, from the memory of one"),
    ),
    "waits": Group(
        runs.waits,
        Measure("{count:,} runs that sleep {seconds:g} s in two hosts, all done", "s", at_most(4), "one sleep"),
        Measure("event sent → taken by a run that waits in memory", "ms", at_most(10)),
        Measure("event sent → taken by a run that waits without a process", "ms", at_most(20)),
        Measure("run that asks and is answered at once, over an awaited run", "×", at_most(2), "that, ms"),
        Measure("each of {many:,} runs that wait for an event, in the supervisor", "KB", at_most(1.5)),
        Measure("boot with {many:,} such runs, beyond an empty one", "s", at_most(1)),
    ),
    "child-death": Group(
        deaths.child_death, Measure("child's host killed → child running again", "ms", at_most(300), RESTART)
    ),
    "supervisor-death": Group(
        deaths.supervisor_death, Measure("supervisor killed → {count:,} live runs adopted", "s", at_most(2), RESTART)
    ),
    "cluster-death": Group(
        deaths.cluster_death,
        Measure("cluster killed → first run back, after the supervisor is up", "s", at_most(1), "one new Ray actor"),
    ),
    "commit": Group(
        ledger.commit,
        Measure("commit of one fact, p50", "ms", None, "a bare write, synchronised"),
        Measure("the same, beyond the bare write", "ms", at_most(0.3)),
    ),
    "boot": Group(
        ledger.boot,
        Measure(f"{BOOT}, time", "s", at_most(1), "without the retained runs"),
        Measure(f"{BOOT}, memory of the process", "MB", at_most(300), "without the retained runs"),
    ),
    "growth": Group(
        growth.growth,
        *(
            Measure(f"{name}, {{costs[{place}]}} µs, over that at {{least:,}}", "×", at_most(1.3))
            for place, name in enumerate(GROWING)
        ),
        Measure("timers kept for {size:,} ended runs", "", at_most(0)),
        Measure("memory of an ended run that was not dropped yet", "bytes"),
        Measure("memory of a boot with {many:,} retained runs, extended from {more:,}", "MB", at_most(200)),
    ),
    "passivated": Group(
        runs.passivated,
        Measure("passivated agents in a process", "", at_most(0)),
        Measure("disk of a passivated agent that wrote", "KB", at_most(100)),
        Measure("disk of a passivated agent that did not write", "KB", at_most(0)),
        Measure("call of a passivated agent", "ms", at_most(20), "call of a live agent"),
    ),
    "awake": Group(
        runs.awake,
        Measure(f"{AWAKE}, in its host", "KB", at_most(6)),
        Measure(f"{AWAKE}, in the supervisor", "KB", at_most(3)),
    ),
    "handlers-death": Group(
        deaths.handlers_death,
        Measure("parent killed in its handlers → delivered again, after its return", "ms", at_most(1_000)),
        Measure("effects of 20 handlers that were lost or doubled", "", at_most(0)),
    ),
    "alarms": Group(
        runs.alarms,
        Measure("{alarms:,} alarms asleep, processor time", "% of a core"),
        Measure(f"{{slow}} {RINGING}, median", "ms", at_most(100)),
        Measure(f"{{slow}} {RINGING}, 99 %", "ms", at_most(100)),
        Measure(f"{{fast}} {RINGING}, median", "ms", at_most(100)),
        Measure(f"{{fast}} {RINGING}, 99 %", "ms", at_most(100)),
        Measure("alarms that rang early", "", at_most(0)),
        Measure("boot with {count:,} sleeping agents ({armed:,} alarms), time", "s", at_most(1)),
    ),
    "simulated-kills": Group(
        runs.simulated_kills, Measure("simulated kills", "kills/s"), Measure("seeds of the swarm that failed", "")
    ),
    "chat-children": Group(
        chats.chat_children,
        Measure("awaited chat child, p50", "ms", at_most(15), CLOUDFLARE, 34),
        Measure("fan-out of {total} chat children", "runs/s", at_least(200), CLOUDFLARE, 25),
        Measure("disk of a chat child", "KB", at_most(150), CLOUDFLARE, 600),
        Measure("detached chat child's end to its parent's handler", "ms", at_most(20)),
    ),
    "chat-streams": Group(
        chats.chat_streams,
        Measure(f"{STREAMS}, all done", "s", at_most(13), CLOUDFLARE, 52),
        Measure(f"{STREAMS}, memory in all", "MB", at_most(2_048), CLOUDFLARE, 2_100),
        Measure("durable chunks of one stream, to its caller", "/s", at_least(20_000), CLOUDFLARE, 3_400),
        Measure("latency of a chunk when idle, p50", "ms", at_most(2)),
    ),
    "chat-turns": Group(
        chats.chat_turns,
        Measure("turn overhead beyond the model's time, p50", "ms", at_most(15)),
        Measure("start of a turn with {long:,} messages before it", "ms", at_most(50)),
        Measure("the whole of such a turn", "ms", None, "the same with an empty transcript"),
    ),
    "chat-recovery": Group(
        deaths.chat_recovery,
        Measure("connection reset → next request, beyond the backoff", "ms", at_most(50)),
        Measure("stall noticed → next request", "ms", at_most(50)),
        Measure("agent's host killed → next request", "ms", at_most(500)),
        Measure(
            "detached chat child's end to its parent's handler, after a recovery",
            "ms",
            at_most(20),
            CLOUDFLARE,
            6_000,
        ),
    ),
    "reconnection": Group(
        deaths.reconnection,
        Measure(
            "first frame of a run, {count:,} retained beside it",
            "ms",
            at_most(100),
            "the list of all {count:,} as well",
        ),
    ),
    "fibers": Group(
        runs.fibers,
        Measure("fiber accepted durably, one at a time, p50", "ms", at_most(3), "smallest durable write"),
        Measure("fibers accepted durably in batches of {batch}", "/s", at_least(5_000)),
        Measure("the same, until they were done", "/s"),
        Measure("longest call while {total:,} fibers are recovered", "ms", at_most(50)),
        Measure("median call while {total:,} fibers are recovered", "ms"),
    ),
    "webhooks": Group(
        gateway.webhooks,
        Measure("webhook to durable acknowledgement, p50", "ms", at_most(10)),
        Measure("the same, p99", "ms"),
        Measure("webhooks acknowledged, {chats} chats", "/s", at_least(500)),
        Measure("webhooks that were acknowledged and not answered", "", at_most(0)),
    ),
    "gateway": Group(
        gateway.gateway,
        Measure("chat turn over HTTP beyond the same turn inside, p50", "ms", at_most(5)),
        Measure("chat turn over HTTP, p50", "ms"),
        Measure("delay of a chunk of one chat over HTTP, p50", "ms"),
        Measure("delay of a chunk, {total} chats at once with 20 chunks/s each, p50", "ms"),
        Measure("the same, p99", "ms", at_most(150)),
    ),
    "watchers": Group(
        gateway.watchers,
        Measure("delay of an event, {count:,} watchers of a run with {rate:,} a second, p50", "ms"),
        Measure("the same, p99", "ms", at_most(250)),
        Measure("watchers that lost an event or got one twice", "", at_most(0)),
        Measure("memory of the gateway, highest", "MB", at_most(400)),
        Measure("processor time of the gateway", "% of a core"),
    ),
    "gateway-idle": Group(
        gateway.gateway_idle,
        Measure("idle gateway, processor time", "% of a core", at_most(1)),
        Measure("the same, memory", "MB", at_most(120)),
        Measure("the same, pages that it shares with others counted whole", "MB"),
    ),
    "gateway-killed": Group(
        gateway.gateway_killed,
        Measure("gateway killed in an answer → next frame, one of two processes", "ms", at_most(1_500)),
        Measure("the same, the only process", "ms"),
    ),
    "agent-connect": Group(
        gateway.agent_connect,
        Measure("connect to an agent with {count:,} retained runs, until it says who it is", "ms", at_most(100)),
        Measure("the same, until the first retained run is told", "ms"),
        Measure("the same, until the newest {newest:,} are told", "ms"),
    ),
    "first-paint": Group(
        gateway.first_paint,
        Measure(
            "dashboard opened with {count:,} ended runs → the newest {page} are painted",
            "ms",
            at_most(300),
            "with {page} runs",
        ),
        Measure("the same, until anything is painted", "ms", None, "with {page} runs"),
    ),
}

BUCKET: Final = {
    "bucket": Group(
        runs.bucket,
        Measure("PUT of 1 KB", "ms"),
        Measure("awaited run, p50", "ms", None, "two PUTs, one after the other"),
        Measure("the same, beyond twice the median PUT", "ms", at_most(8), "the whole of it on a directory"),
        Measure("awaited run, p99", "ms", None, THERE),
        Measure("fan-out of {count:,} instant children", "runs/s", None, THERE),
        Measure("the same, as a share of the directory's", "", at_least(0.6)),
        Measure("the same, commits", "PUTs", at_most(30)),
        Measure("{count:,} detached runs with a handler that updates state", "deliveries/s", None, THERE),
        Measure("the same, as a share of the directory's", "", at_least(0.5)),
        Measure("supervisor killed → a run that is asked for then", "ms", None, THERE),
        Measure(f"{BUSY}: commits", "PUTs/s", at_most(10)),
        Measure("the same: the turns", "s", None, THERE),
    )
}

THEIRS: Final = "the same on {peer}"
AS_FAST: Final = "Perdure is faster than {peer}"

VERSUS: Final = {
    PeerName(name): Group(
        partial(runs.versus, needs.module),
        Measure("awaited run, p50", "ms", None, "round trip of a plain Ray call"),
        Measure(THEIRS, "ms", None, "on Perdure"),
        Measure(AS_FAST, "×"),
        Measure("fan-out of {total:,} instant children", "runs/s", None, PLAIN),
        Measure(THEIRS, "runs/s", None, "on Perdure"),
        Measure(AS_FAST, "×"),
    )
    for name, needs in PEERS.items()
}


# ---------------- a process for each group


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
    module = "perdure.scenarios.bench.command"
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
