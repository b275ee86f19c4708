"""Machines that share nothing, on one: each has a network, mounts, a host name and processes of its own, and dies with its disk.

It needs root, `ip netns` and `unshare`. The machines are on a bridge with this one, where a bucket's server may listen (`Machines.here`).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

IP = shutil.which("ip") or "ip"
RAY = f"{gettempdir()}/ray"  # where Ray has its sockets
RAY_PORT = 6379
START_S = 120.0
SETTINGS = {  # of every process there
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",  # twice as long as is advised: the tests of a busy machine are slow themselves
    "RAY_health_check_failure_threshold": "3",
}
# The machine outlives its Ray, which ends where the others have taken it for dead.
_PLAY = """
hostname {name}; mkdir -p {ray}; mount --bind {disk}/ray {ray}; mount -t tmpfs tmpfs /dev/shm; "$@"; exec sleep infinity
"""


def are_possible() -> bool:
    """Whether this process may make machines."""
    commands = ("ip", "unshare", "nsenter", "mount")
    if os.geteuid() != 0 or any(shutil.which(each) is None for each in commands):
        return False
    probe = f"pn{os.getpid()}"
    made = subprocess.run([IP, "netns", "add", probe], capture_output=True, check=False)
    subprocess.run([IP, "netns", "del", probe], capture_output=True, check=False)
    return made.returncode == 0


class Machines:
    """Machines 1 to `count`. The first one has Ray's head.

    Attributes:
        here: the address under which they reach this machine.
    """

    def __init__(self, folder: Path, count: int, environment: dict[str, str]) -> None:
        self._folder, self._count = folder, count
        self._net = f"10.{77 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self._mark = f"{os.getpid() % 100_000}"
        self._environment = environment
        self._inits: dict[int, int] = {}  # the first process of each
        self._started: list[subprocess.Popen[bytes]] = []
        self.here = f"{self._net}.254"

    def add(self, environment: dict[str, str]) -> None:
        """Variables for every process that is started from now on."""
        self._environment = {**self._environment, **environment}

    def disk(self, number: int) -> Path:
        return self._folder / f"disk{number}"

    @property
    def ray(self) -> str:
        return f"{self.address(1)}:{RAY_PORT}"

    def up(self) -> None:
        """Make the network."""
        _ip(f"link add pb{self._mark} type bridge")
        _ip(f"addr add {self.here}/24 dev pb{self._mark}")
        _ip(f"link set pb{self._mark} up")
        for number in range(1, self._count + 1):
            space, cable = self._space(number), self._cable(number)
            _ip(f"netns add {space}")
            _ip(f"link add {cable} type veth peer name eth0 netns {space}")
            _ip(f"link set {cable} master pb{self._mark}")
            _ip(f"-n {space} addr add {self.address(number)}/24 dev eth0")
            _ip(f"-n {space} link set eth0 up")
            _ip(f"-n {space} link set lo up")
            _ip(f"link set {cable} up")

    def down(self) -> None:
        """End everything."""
        for number in list(self._inits):
            self.kill(number)
        for process in self._started:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()
        for number in range(1, self._count + 1):
            _ip(f"netns del {self._space(number)}", check=False)
            _ip(f"link del {self._cable(number)}", check=False)
        _ip(f"link del pb{self._mark}", check=False)

    def start(self, number: int) -> None:
        """Boot a machine, with Ray."""
        disk = self.disk(number)
        for name in ("ray", "home"):
            (disk / name).mkdir(parents=True, exist_ok=True)
        where = (
            ["--head", f"--port={RAY_PORT}", "--include-dashboard=false"] if number == 1 else [f"--address={self.ray}"]
        )
        ray = [
            str(Path(sys.executable).with_name("ray")), "start", *where, f"--node-ip-address={self.address(number)}", "--num-cpus=2",
            f'--resources={{"node{number}": 1000}}', "--object-store-memory=80000000", "--disable-usage-stats", "--block",
        ]  # fmt: skip
        apart = [
            "--mount",
            "--uts",
            "--ipc",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "--propagation",
            "private",
        ]
        play = _PLAY.format(name=f"node{number}", disk=disk, ray=RAY).strip()
        with (disk / "ray.log").open("wb") as log:
            process = subprocess.Popen(
                [IP, "netns", "exec", self._space(number), "unshare", *apart, "bash", "-c", play, "node", *ray],
                env=self.environment(number),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        self._inits[number] = _until(lambda: _child_of(process.pid), f"machine {number} begins")
        _until(lambda: self._is_in_ray(number), f"machine {number} is part of Ray")

    def environment(self, number: int) -> dict[str, str]:
        disk = self.disk(number)
        place = {"HOME": str(disk / "home"), "PERDURE_CACHE": str(disk / "cache")}
        return {**os.environ, **SETTINGS, **self._environment, **place}

    def popen(self, number: int, *command: str, log: Path) -> subprocess.Popen[bytes]:
        """Begin a command on a machine."""
        within = ["nsenter", "-t", str(self._inits[number]), "-m", "-u", "-i", "-n", "-p", "--", *command]
        with log.open("wb") as out:
            process = subprocess.Popen(
                within, env=self.environment(number), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        self._started.append(process)
        return process

    def kill(self, number: int) -> None:
        """Cut its power, and take its disk away."""
        with suppress(ProcessLookupError):
            os.kill(self._inits.pop(number), signal.SIGKILL)
        shutil.rmtree(self.disk(number), ignore_errors=True)

    def cut(self, number: int, *, off: bool = True) -> None:
        """Take a machine off the network, or put it back."""
        _ip(f"link set {self._cable(number)} {'down' if off else 'up'}")

    def part(self, number: int, address: str, *, off: bool = True) -> None:
        """Cut a machine off from this address alone, or no more."""
        _ip(f"-n {self._space(number)} route {'add' if off else 'del'} blackhole {address}/32")

    def address(self, number: int) -> str:
        return f"{self._net}.{number}"

    def _space(self, number: int) -> str:
        return f"pm{self._mark}-{number}"

    def _cable(self, number: int) -> str:
        return f"pv{self._mark}-{number}"

    def _is_in_ray(self, number: int) -> bool:
        return b"Ray runtime started" in (self.disk(number) / "ray.log").read_bytes()


@contextmanager
def machines(folder: Path, count: int, environment: dict[str, str]) -> Iterator[Machines]:
    """Machines, whose network is up, and of which none is started."""
    made = Machines(folder, count, environment)
    try:
        made.up()
        yield made
    finally:
        made.down()


def _ip(command: str, *, check: bool = True) -> None:
    done = subprocess.run([IP, *command.split()], capture_output=True, check=False, text=True)
    if check and done.returncode:
        raise OSError(f"ip {command}: {done.stderr.strip()}")


def _child_of(pid: int) -> int:
    # `ip netns exec` becomes `unshare`, whose only child is the first process of the machine.
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else 0


def _until(look: Callable[[], int], what: str) -> int:
    until_s = time.monotonic() + START_S
    while not (found := look()):
        if time.monotonic() > until_s:
            raise TimeoutError(f"not within {START_S:.0f} s: {what}")
        time.sleep(0.1)
    return found
