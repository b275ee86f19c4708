"""The connection of this process to a Ray.

Ray connects a process to one cluster at a time, so everything that the process opens shares the connection: the first one starts or joins
a Ray, the last one leaves it, and ends it if it is our own.

All that is done by one thread that never ends, because the kernel kills the processes of a Ray when the *thread* that started them ends.
The thread also watches: when a process of a Ray of our own is gone, or the GCS of one that a program of this machine has started; when
the raylet of this machine is another one than before; or when a cluster has not answered for 30 s, that life is over. Callers that wait
for an answer get an error, what is left of a Ray of our own is killed, and the next life begins; work goes on when its supervisor is
found. Without this Ray would end the process 60 s after its GCS has died.

The next life is found as the first one was: another Ray is started where none serves the directory, and a cluster that was named is
waited for. So a Ray that ends with the program that started it is replaced by one of those that had joined it, whom the others join.

A process that is forked from a connected one has the connection's memory, and none of its threads. It is in no Ray, can get into none, and
ends nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, TypeVar

from perdure.actors.ray_world.cluster_record import (
    answers,
    forget_record,
    is_started_here,
    ray_environment,
    read_record,
    refuses,
    startup_lock,
    write_record,
)
from perdure.actors.ray_world.lifetime import Lifetime, on_own_thread, resolve
from perdure.actors.ray_world.os_processes import (
    ProcessId,
    children,
    descendants,
    have_standard_files,
    is_alive,
    kill,
    this_process,
    wait_until_gone,
    with_command,
)
from perdure.actors.ray_world.ray_connection import (
    begin,
    canonical,
    connection,
    sigterm_kept,
    start,
)
from perdure.actors.ray_world.ray_internals import (
    GCS,
    RAYLET,
    allow_auto_connect,
    leave_to_parent,
    shut_down,
    workers_of,
)
from perdure.actors.ray_world.sigterm import SIGTERM_HANDLING
from perdure.ledger import BadRequest, PerdureError, RuntimeClosed, SupervisorUnreachable, given_as
from perdure.policies import backoff_ms

T = TypeVar("T")

WATCH_S: Final = 0.5  # between two checks
PROBE_S: Final = 5.0  # between two probes of a cluster that is not our own
PROBES_MAX: Final = 6  # without an answer, in a row
DEATH_S: Final = 2.0  # for a killed process to be gone
EXIT_S: Final = 20.0
SILENT_S: Final = 2.0  # of an opening, until a line says that it goes on
ENSURE_S: Final = 20.0  # for a supervisor to be found or created
FAILURES_TOLD: Final = 3  # in a row, to begin another life: then a line says so
INIT: Final = 1  # Ray ends a child of this process at once when its raylet is gone
SHUT_DOWN: Final = "this process has shut Ray down"
FORKED: Final = (
    "this process was forked from one that is in a Ray, and has none of its threads. Start processes by"
    " `multiprocessing.get_context('spawn')`, or open the runtime after the fork only (under gunicorn --preload: in each worker)"
)


class RayLife(Lifetime):
    """One connection to a Ray, from its start to its end.

    Args:
        address: where its GCS is.
        own: this process started that Ray, and ends it.
        borrowed: other code of this process has connected it.
        session: its name, which stands in the command lines of its processes.
        vital: by name, the processes without which a Ray that a program of this machine has started is dead.
    """

    def __init__(self, address: str, session: str, vital: dict[str, ProcessId], *, own: bool, borrowed: bool) -> None:
        super().__init__()
        self.address, self.session, self.vital = address, session, vital
        self.own, self.borrowed = own, borrowed


class OpenDirectory(NamedTuple):
    """A directory that this process has open.

    Args:
        ensure: finds or creates its supervisor, given whether the Ray is our own.
        may_start: whether a Ray may be started for it. One that only looks leaves the directory as it is.
    """

    data: Path
    ensure: Callable[[bool], object]
    may_start: bool = True


class Driver:
    """The one instance is `DRIVER`. Public methods may be called from any thread; the others run on the driver's own thread."""

    def __init__(self) -> None:
        self.begin(is_forked=False)

    def begin(self, *, is_forked: bool) -> None:
        atexit.unregister(self._at_exit)  # which would start a thread, and has nothing to end
        self._is_forked = is_forked
        self._life: RayLife | None = None
        self._why = FORKED if is_forked else "this process is in no Ray"
        self._members: list[OpenDirectory] = []
        self._again: Callable[[Path], bool] | None = None  # begins the next life; returns whether it is our own
        self.owns = False  # whether the present life, or the one before, is our own
        self._failures, self._not_before_s = 0, 0.0
        self._unanswered, self._probed_s = 0, 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def living(self) -> RayLife:
        """The present life. Raises `SupervisorUnreachable` if there is none."""
        life = self._life
        if life is None:
            raise SupervisorUnreachable(self._why)
        return life

    @property
    def is_over(self) -> bool:
        """No other life begins, because this process has shut its Ray down."""
        return self._life is None and self._again is None

    def enter(self, member: OpenDirectory, address: str | None, num_cpus: int | None = None) -> RayLife:
        """Start or join the Ray of this directory, or share the connection that this process has.

        Raises `RuntimeClosed` in a process that was forked from a connected one.
        Raises `LedgerUnwritable`; `BadRequest` if the process is connected to a Ray at another address; `SupervisorUnreachable` if
        nobody answers; and `ValueError` if nothing serves the directory and nothing may be started.
        """
        if self._is_forked:
            raise RuntimeClosed("runtime", FORKED)
        have_standard_files()
        SIGTERM_HANDLING.hold()
        start_with = functools.partial(start, num_cpus) if member.may_start else None
        entered = self._submit(functools.partial(self._enter, member, address, start_with))
        try:
            if wait([entered], SILENT_S).not_done:
                what = "opening" if member.may_start else "looking for what serves"
                sys.stderr.write(f"perdure: {what} {given_as(member.data)}; a Ray takes a while on a busy machine\n")
            return entered.result()
        except BaseException:
            if not entered.done():  # Ctrl-C, for example: nothing else would leave what is entered meanwhile
                self._submit(functools.partial(self._leave, member))
            SIGTERM_HANDLING.let_go()
            raise

    def is_last(self, member: OpenDirectory) -> bool:
        return [each.data for each in self._members].count(member.data) == 1

    def leave(self, member: OpenDirectory) -> None:
        self._end_of(member, self._leave)

    def kill(self, member: OpenDirectory) -> None:
        """Kill the Ray of our own at once, with all that runs in it, and leave. If other members are left, the next life begins."""
        self._end_of(member, self._kill)

    def _end_of(self, member: OpenDirectory, end: Callable[[OpenDirectory], None]) -> None:
        try:
            self._submit(functools.partial(end, member)).result()
        finally:
            SIGTERM_HANDLING.let_go()

    def _submit(self, job: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="perdure-ray", daemon=True)
                self._thread.start()
                atexit.register(self._at_exit)
        future: Future[T] = Future()
        self._jobs.put(functools.partial(resolve, future, job))
        return future

    # The process ends without `leave`. The next program that opens its directories goes on from what is durable.
    def _at_exit(self) -> None:
        self._members.clear()
        # Who asks for the end once more does not wait for it.
        with contextlib.suppress(TimeoutError, SystemExit, KeyboardInterrupt):
            self._submit(functools.partial(self._end, "its process ended")).result(EXIT_S)
        _end_as_interrupted()

    # on the driver's own thread

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=WATCH_S if self._members else None)
            except Empty:
                seen: Future[None] = Future()
                resolve(seen, self._look)
                if (problem := seen.exception()) is not None:
                    traceback.print_exception(problem)
            else:
                job()

    def _enter(self, member: OpenDirectory, address: str | None, start_with: Callable[[], None] | None) -> RayLife:
        if self._life is not None and connection() is None:
            self._end(SHUT_DOWN)
        with _locked(member):
            if self._life is not None:
                _refuse_another(address, self._life.address)
            elif connection() is not None:
                self._life, self._again, self.owns = _life(member.data, borrowed=True), None, False
            else:
                self._begin(member.data, functools.partial(begin, address, start_with))
            if self._again is not None and not any(each.may_start for each in self._members):
                self._again = functools.partial(begin, address, start_with)  # those before only looked
            allow_auto_connect(allowed=False)
            self._members.append(member)
            try:
                return self._serve(member)
            except BaseException:
                self._leave(member)
                raise

    # The caller has the startup lock.
    def _begin(self, data: Path, again: Callable[[Path], bool]) -> None:
        with ray_environment():
            self.owns, self._again = again(data), again
            self._life = _life(data, own=self.owns)

    # The caller has the startup lock, for which other processes that open the directory wait.
    def _serve(self, member: OpenDirectory) -> RayLife:
        life = self.living()
        try:
            life.bound(on_own_thread(functools.partial(member.ensure, life.own))).result(ENSURE_S)
        except TimeoutError:
            raise SupervisorUnreachable(f"the Ray at {life.address} does not answer") from None
        known = read_record(member.data)
        is_new = life.own or (not life.borrowed and (known is None or known.address != life.address))
        if is_new and member.may_start:
            write_record(member.data, life.address, os.getpid() if life.own else 0)
        return life

    def _leave(self, member: OpenDirectory) -> None:
        if member in self._members:
            self._members.remove(member)
        if self._life is not None and self._life.own and member.data not in {each.data for each in self._members}:
            forget_record(member.data, self._life.address)
        if not self._members:
            self._end("it was closed")
            allow_auto_connect(allowed=True)

    def _kill(self, member: OpenDirectory) -> None:
        self._end("it was killed")
        self._leave(member)

    def _end(self, why: str) -> None:
        life, self._life = self._life, None
        if life is None:
            return
        self._why = f"the Ray at {life.address} is over: {why}"
        family = _family(life)
        life.end(SupervisorUnreachable(self._why))
        if life.own:
            for member in self._members:
                forget_record(member.data, life.address)
        if not life.borrowed:
            if os.getppid() != INIT:
                # The GCS first: if it told that the node is dead, Ray would ask for what was there, and end this process.
                kill(sorted(family, key=lambda each: each != life.vital.get("GCS")))
            if connection() is not None:  # otherwise another thread is about it, or has done it
                with sigterm_kept():
                    shut_down()
            kill(family)
            wait_until_gone(family, DEATH_S)

    def _look(self) -> None:
        life = self._life
        if life is None:
            self._live_again()
        elif connection() is None:
            self._again = None
            self._end(SHUT_DOWN)
        elif dead := _dead_of(life):
            self._end(f"its {' and its '.join(dead)} died")
        elif not life.own and not life.borrowed and self._is_silent(life):
            self._end("it does not answer any more")

    def _is_silent(self, life: RayLife) -> bool:
        if time.monotonic() >= self._probed_s + PROBE_S:
            self._unanswered = 0 if answers(life.address) else self._unanswered + 1
            self._probed_s = time.monotonic()
        return self._unanswered >= PROBES_MAX

    def _live_again(self) -> None:
        if self._again is None or time.monotonic() < self._not_before_s:
            return
        first, *others = sorted(self._members, key=lambda each: not each.may_start)
        try:
            with _locked(first):
                self._begin(first.data, self._again)
                self._serve(first)
            for member in others:
                with _locked(member):
                    self._serve(member)
        except (PerdureError, ValueError) as problem:
            self._failures += 1
            if self._failures == FAILURES_TOLD and first.may_start:
                sys.stderr.write(f"perdure: {problem}; this program tries again, and what it waits for goes on then\n")
            self._not_before_s = time.monotonic() + backoff_ms(self._failures, 500, 30_000) / 1000
            self._end(str(problem))
            self._why = str(problem)
        else:
            self._failures, self._unanswered = 0, 0


def _end_as_interrupted() -> None:
    # CPython forgets that Ctrl-C has ended the program when a text is executed afterwards: by imports for what is being entered still.
    if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 - it notes an interrupt that nobody handles


DRIVER: Final = Driver()


os.register_at_fork(after_in_child=lambda: DRIVER.begin(is_forked=leave_to_parent()))


def _locked(member: OpenDirectory) -> contextlib.AbstractContextManager[None]:
    return startup_lock(member.data) if member.may_start else contextlib.nullcontext()


def _life(data: Path, *, own: bool = False, borrowed: bool = False) -> RayLife:
    here = connection()
    assert here is not None, "a life begins when this process is connected"
    marks = {"GCS": GCS, "raylet": RAYLET} if own else {}
    found = {name: children(this_process(), here.session, mark) for name, mark in marks.items()}
    if not (own or borrowed):
        is_known = is_started_here(data, here.address)
        found = {"GCS": with_command(GCS, here.session) if is_known else [], "raylet": with_command(RAYLET, here.node)}
    vital = {name: processes[0] for name, processes in found.items() if processes}
    return RayLife(here.address, here.session, vital, own=own, borrowed=borrowed)


# On a machine that is cut off from its cluster, the raylet ends. This process stays connected until another one is there, for it
# can join nothing before, and works on when the cluster is there again.
def _dead_of(life: RayLife) -> list[str]:
    dead = [name for name, process in life.vital.items() if not is_alive(process)]
    if dead == ["raylet"] and not life.own and not with_command(RAYLET, f"--gcs-address={life.address}"):
        return []
    # A GCS that was asked to end listens no more, and stays for up to 20 s more.
    return ["GCS"] if life.own and not dead and refuses(life.address) else dead


# A raylet that died has left its workers behind, as children of another process.
def _family(life: RayLife) -> list[ProcessId]:
    if not life.own:
        return []
    left = workers_of(life.vital["raylet"]) if "raylet" in life.vital else []
    return list({*descendants(this_process(), life.session), *left})


def _refuse_another(address: str | None, here: str) -> None:
    if address in (None, "local", "auto") or canonical(str(address)) == canonical(here):
        return
    answers(str(address))
    raise BadRequest(
        "address",
        f"this process is in the Ray at {here} already, and can only be in one at a time. Close what it has open"
        f" there, or join {address} from another process",
    )
