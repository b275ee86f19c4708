"""Play workloads under the recorder, and judge what a kill, a torn write, a power cut, both, or a failed change leaves.

`python -m tests.crash.explore ledger` judges all states, `… ledger --part 2 8` an eighth of them, `… ledger --sample 200` some, and
`… ledger power-none:57` this one.
`room:64` is a real file system of 64 KiB, which it mounts. `--keep FOLDER` keeps the directories that are found wrong. It prints JSON.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from perdure.ledger.storage.log_file import CUT
from perdure.ledger.storage.shared_segment import DAMAGED, read_segment
from tests.crash import agent_lives, ledger_lives
from tests.crash.disk import Change, Disk, Image, changes, digest_of, found, lay
from tests.crash.recording import Fault, Record, Workload, compiled, in_child, preload

WORKLOADS = {
    each.name: each
    for each in (
        ledger_lives.LEDGER,
        ledger_lives.FIRST_START,
        agent_lives.STORAGE,
        agent_lives.LOG,
        agent_lives.MOVE,
        agent_lives.LATE_MOVE,
        agent_lives.HAND_OVER,
        agent_lives.LOG_HAND_OVER,
        agent_lives.CREATION,
        agent_lives.TOGETHER,
        agent_lives.FORGET,
        agent_lives.REST,
        agent_lives.NAMES,
    )
}
KILLED = "died: SIGKILL"
POWER = (
    "power-none",
    "power-zeros",
    *(f"power-{how}-{number}" for how in ("pages", "moment") for number in range(3)),
)
MEMORY = "/dev/shm"  # noqa: S108 - each state has a folder of its own in it
MOUNT = shutil.which("mount") or "mount"
FAULTS = {"full": errno.ENOSPC, "broken": errno.EIO, "twice": 0}
BOOTS = 3  # power cuts, one after the other
COSTLY = {*FAULTS, "boots", "unsynced"}  # each state is one life or several


def play(workload: Workload, folder: Path, fault: Fault | None = None) -> tuple[list[Change], str]:
    """Live the workload in a new directory: its record, and how the last life ended. After an error none follows."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as beside:
        record = Record(folder, Path(beside) / "record", fault)
        for life in workload.lives:
            ended = record.run(lambda life=life: life(folder, record.say))
            if ended and ended != KILLED:
                break
            record.fault = None if ended else record.fault  # a kill comes once
        return list(changes(record.file)), ended


def modelled(kind: str, at: int, disk: Disk, recorded: list[Change]) -> Image:
    """The state of this kind after the change number `at`; for a torn write, in it."""
    dice = random.Random(f"{kind}:{at}")
    if kind == "torn":
        return disk.image(recorded[at], dice.randint(1, len(recorded[at].data) - 1))
    if kind == "kill":
        return disk.image()
    how = {"boots": "pages", "flip": "none"}.get(kind.partition("-")[0]) or kind.split("-")[1]
    image = disk.after_power_cut(how, dice)
    return flipped(image, dice) if kind.startswith("flip") else image


def flipped(image: Image, dice: random.Random) -> Image:
    """One bit is another one, or a sector is zero."""
    path = dice.choice([path for path, content in sorted(image.items()) if content and content.strip(b"\0")] or [""])
    content = bytearray(image.get(path) or b"")
    if content:
        at = dice.randrange(len(content.rstrip(b"\0")))
        content[at] ^= 1 << dice.randrange(8)
        if dice.random() < 0.3:
            content[at - at % 512 : at - at % 512 + 512] = bytes(len(content[at - at % 512 : at - at % 512 + 512]))
        image = {**image, path: bytes(content)}
    return image


def told(verdict: str, folder: Path) -> bool:
    """Whether a loss by damage is told: the agent is refused, or what was damaged at the end of a log is kept, where `perdure doctor` names
    it."""
    segments = [read_segment(each.read_bytes()).problem for each in folder.glob(f"shared/*{DAMAGED}*")]
    kept = any("later" not in each for each in segments) or any(CUT in each.name for each in folder.rglob("*"))
    return verdict.startswith(("refused", "unreadable")) or (verdict.startswith("lost") and kept)


def states_of(recorded: list[Change]) -> list[tuple[int, str]]:
    """Every state: after which change, and of which kind."""
    after = [(at + 1, kind) for at, change in enumerate(recorded) for kind in ("kill", *POWER) if change.op != "A"]
    torn = [(at, "torn") for at, change in enumerate(recorded) if change.op == "w" and len(change.data) > 1]
    faults = [(at + 1, kind) for at in range(sum(change.op != "A" for change in recorded)) for kind in FAULTS]
    boots = [(at + 1, "boots") for at, change in enumerate(recorded) if change.op != "A" and at % BOOTS == 0]
    flips = [(at, f"flip-{number}") for at, kind in after if kind == "power-none" for number in range(2)]
    return sorted(after + torn + faults + boots + flips + [(at, "unsynced") for at, _ in syncs_of(recorded)])


def offered(workload: Workload, recorded: list[Change]) -> list[tuple[int, str]]:
    """The states that this workload can be judged in."""
    left_out = set() if workload.faults else {*FAULTS, "unsynced"}
    return [
        (at, kind)
        for at, kind in states_of(recorded)
        if kind not in left_out and (workload.flips or not kind.startswith("flip"))
    ]


def syncs_of(recorded: list[Change]) -> list[tuple[int, str]]:
    """Which changes, by their numbers, are synchronisations, and of which files."""
    only = [change for change in recorded if change.op != "A"]
    return [(number, Path(change.path).name) for number, change in enumerate(only, 1) if change.op in "sSY"]


def sampled(states: list[tuple[int, str]], size: int) -> list[tuple[int, str]]:
    """As many of each kind as of the others; of faults fewer, because each is a life of its own."""
    dice = random.Random(0)
    names = sorted({kind for _, kind in states} - {"twice"})
    kinds = {name: [each for each in states if each[1] == name] for name in names}
    share = size // sum(1.0 if kind not in COSTLY else 0.2 for kind in kinds)
    shares = {kind: int(share * (0.2 if kind in COSTLY else 1)) for kind in kinds}
    return sorted(each for kind, ours in kinds.items() for each in dice.sample(ours, min(len(ours), shares[kind])))


def judged(workload: Workload, states: list[tuple[int, str]], recorded: list[Change], folder: Path) -> Iterator[str]:
    """The verdict on each state. It is in the folder until the next one is asked for."""
    disk, done, known = Disk(folder), 0, {}
    for at, kind in states:
        if kind == "twice":
            yield twice(workload, folder, at)
        elif kind == "unsynced":
            yield unsynced(workload, folder, at)
        elif kind in FAULTS:
            yield played(workload, folder, Fault(at, FAULTS[kind]))
        elif kind == "room":
            yield from in_a_room(workload, folder, at)
            continue
        else:
            for change in recorded[done:at]:
                disk.apply(change)
            done = at
            image = modelled(kind, at, disk, recorded)
            state = digest_of(image, disk.said)
            lay(image, folder)
            if kind == "boots":
                yield boots(workload, folder, at, disk.said)
                shutil.rmtree(folder)
                continue
            if state not in known:
                verdict = in_child(lambda: workload.judge(folder, disk.said))
                known[state] = "" if kind.startswith("flip") and told(verdict, folder) else verdict
            yield known[state]
        shutil.rmtree(folder)


def played(workload: Workload, folder: Path, fault: Fault | None = None, healed: tuple[str, ...] = ()) -> str:
    """The verdict on what a life leaves whose changes fail. It has to refuse what it cannot do, and neither dies nor raises otherwise."""
    recorded, ended = play(workload, folder, fault)
    if healed:
        subprocess.run(healed, check=True)
    said = [change.data.decode() for change in recorded if change.op == "A"]
    return ended * (not ended.startswith("refused")) or in_child(lambda: workload.judge(folder, said))


def twice(workload: Workload, folder: Path, at: int) -> str:
    """The verdict on a power cut that soon follows a kill: nothing that the life after the kill was shown may go."""
    recorded, ended = play(workload, folder, Fault(at, 0))
    shutil.rmtree(folder)
    disk = Disk(folder)
    killed = ([number for number, change in enumerate(recorded) if change.op != "A"][:at] or [-1])[-1]
    shown = [number for number, change in enumerate(recorded) if change.op == "A" and killed < number < killed + 60]
    for change in recorded[: random.Random(at).choice(shown or [killed]) + 1]:
        disk.apply(change)
    lay(disk.after_power_cut("none", random.Random(at)), folder)
    return ended * (ended != KILLED) or in_child(lambda: workload.judge(folder, disk.said))


def unsynced(workload: Workload, folder: Path, at: int) -> str:
    """The verdict on a power cut after a life in which this synchronisation failed, and its pages were lost."""
    recorded, _ = play(workload, folder, Fault(at, errno.EIO))
    shutil.rmtree(folder)
    disk = Disk(folder)
    for change in recorded:
        disk.apply(change)
    lay(disk.after_power_cut("none", random.Random(at)), folder)
    return in_child(lambda: workload.judge(folder, disk.said))


def boots(workload: Workload, folder: Path, at: int, said: list[str]) -> str:
    """The verdict on power cuts that follow one another, each soon after the start that follows the one before."""
    dice = random.Random(at)
    for _ in range(BOOTS):
        disk = Disk(folder)
        disk.adopt()
        with tempfile.TemporaryDirectory() as beside:
            record = Record(folder, Path(beside) / "record")
            record.run(lambda: workload.judge(folder, said))
            recorded = list(changes(record.file))
        for change in recorded[: dice.randint(0, len(recorded))]:
            disk.apply(change)
        shutil.rmtree(folder)
        lay(disk.after_power_cut(dice.choice(("none", "pages", "moment")), dice), folder)
    return in_child(lambda: workload.judge(folder, said))


def in_a_room(workload: Workload, folder: Path, size: int) -> Iterator[str]:
    """The verdict on a real file system of so many KiB that was full, and has room again."""
    room = str(folder.parent)
    subprocess.run([MOUNT, "-t", "tmpfs", "-o", f"size={size}k", "none", room], check=True)
    yield played(workload, folder, healed=(MOUNT, "-o", "remount,size=64m", room))
    subprocess.run([MOUNT.replace("mount", "umount"), room], check=True)


def explore(
    workload: Workload, wanted: list[str], sample: int, part: tuple[int, int], keep: Path | None
) -> dict[str, object]:
    """Record once, judge the states that are wanted, and count the verdicts by kind."""
    counts: dict[str, Counter[str]] = {}
    wrong = {}
    with tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None) as place:
        folder = Path(place) / "room" / "directory"
        recorded, ended = play(workload, folder)
        assert not ended, ended
        disk = Disk(folder)
        for change in recorded:
            disk.apply(change)
        assert disk.image() == found(folder), "the record is not complete"
        shutil.rmtree(folder)
        states = sorted((int(at), kind) for kind, at in (each.split(":") for each in wanted))
        if not wanted:
            states = offered(workload, recorded)
            states = sampled(states, sample) if sample else states[part[0] :: part[1]]
        for (at, kind), verdict in zip(states, judged(workload, states, recorded, folder), strict=True):
            counts.setdefault(kind.rstrip("-0123456789"), Counter())[verdict.partition(":")[0] or "well"] += 1
            if verdict:
                wrong[f"{kind}:{at}"] = verdict
            if verdict and keep:
                shutil.copytree(folder, keep / f"{workload.name}-{kind}-{at}", dirs_exist_ok=True)
    return {
        "changes": len(recorded),
        "counts": counts,
        "wrong": wrong,
        "syncs": syncs_of(recorded),
        "steps": steps(recorded, folder),
    }


def steps(recorded: list[Change], folder: Path) -> list[dict[str, object]]:
    """After each thing said: which files were synchronised before it, and what a power cut could take back now."""
    disk, told, syncs = Disk(folder), [], []
    for change in recorded:
        disk.apply(change)
        if change.op == "A":
            told.append({"said": disk.said[-1], "syncs": syncs, "open": sorted(disk.unsynchronised())})
            syncs = []
        elif change.op in "Ss":
            syncs.append("FSYNC " * (change.op == "S") + disk.name_of(change))
        elif change.op == "Y":
            syncs.append("SYNCFS")
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("states", nargs="*")
    parser.add_argument("--sample", type=int, default=0)
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1))
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    if "recorder.so" not in os.environ.get("LD_PRELOAD", ""):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tests.crash.explore", *sys.argv[1:]]
            sys.exit(subprocess.run(command, env=preload(compiled(Path(folder))), check=False).returncode)
    result = explore(WORKLOADS[asked.workload], asked.states, asked.sample, tuple(asked.part), asked.keep)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
