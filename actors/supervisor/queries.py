"""Questions that are answered without a new fact: those of the books (`link.questions`), and those that are the supervisor's alone."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final, cast

from perdure.actors.link.messages import LogsRead, Passivate, ReadLogs, Reply
from perdure.actors.link.questions import (
    Books,
    ChangedRuns,
    Keep,
    Later,
    LogMachines,
    LogsOf,
    Query,
    Upgrade,
    WindDown,
)
from perdure.actors.link.wire import error_to_plain
from perdure.actors.log_files import folder_key, read_logs
from perdure.actors.ports import Fleet, World
from perdure.actors.supervisor.checkpoints import Checkpoints
from perdure.actors.supervisor.replication import Replication
from perdure.actors.supervisor.sessions import PeerSession, Sessions
from perdure.actors.tasks import Tasks, report_error
from perdure.ledger import (
    BadRequest,
    BatchRow,
    CarryingStore,
    LedgerError,
    PerdureError,
    Row,
    RunCleared,
    StorageError,
    Store,
    View,
    batch_of,
    line,
    older_awake,
    standing_of,
)
from perdure.ledger.maintenance.cut import STAGE, read_known, stage_cut
from perdure.ledger.storage.agent_storages import stored_below

CHANGED_MAX: Final = 20_000  # changed runs that are remembered
GREETED_S: Final = 2.0  # after this life has begun, until the hosts that live have greeted it
WITHIN_S: Final = 5.0  # for the hosts of a machine together, besides what they may wait themselves
HOSTS_ASKED: Final = 2
WISH_S: Final = 5.0  # for so long the wish to wind down holds


@dataclass
class Work:
    """What one life of the supervisor has done: how many commits it has made, how many milliseconds they took together, and how many the
    longest of its turns took besides its commit."""

    commits: int = 0
    commit_ms: float = 0.0
    longest_turn_ms: float = 0.0


# Nothing is kept for those that ask: the number of a fact is all that they remember. It holds across lives of the supervisor, so a client
# that was away asks for what came after it, of whichever life. What happened too long ago, or in an earlier life, is told as a reset: read
# everything again.
class Changes:
    """Which runs have changed since a fact, so that a display of runs asks for those alone."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._last: OrderedDict[str, int] = OrderedDict()  # runs with the fact that changed them last, in their order
        self._cleared: dict[str, None] = {}  # those of them whose last fact is that they were cleared
        self._begin = self._upto = view.seq

    # These facts are durable.
    def note(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if isinstance(row, BatchRow):
                self._changed_together(batch_of(row).run_ids, row.seq)
                continue
            self._upto = row.seq
            if row.subject in self._view.runs:
                self._changed(row.subject, is_cleared=row.kind == RunCleared.__name__)
        while len(self._last) > CHANGED_MAX:
            run_id, self._begin = self._last.popitem(last=False)
            self._cleared.pop(run_id, None)

    def _changed(self, run_id: str, *, is_cleared: bool) -> None:
        self._last[run_id] = self._upto
        self._last.move_to_end(run_id)
        self._cleared.pop(run_id, None)
        if is_cleared:
            self._cleared[run_id] = None

    def _changed_together(self, run_ids: list[str], seq: int) -> None:
        for run_id in run_ids if self._cleared else ():
            self._cleared.pop(run_id, None)
        last, behind = self._last, self._last.move_to_end
        for self._upto, run_id in enumerate(run_ids, seq):
            last[run_id] = self._upto
            behind(run_id)

    def since(self, after: int | None, limit: int) -> dict[str, object]:
        """The runs that have changed after a fact, as lines, in the order of their changes, and the ids of those that are gone.

        `upto` is the fact to ask from the next time, and `more` says that there are more already. Without a fact, after one that is not
        remembered, or when a run has changed and left memory since, it is a `reset`, and nothing is told but `upto`.
        """
        if after is None or not self._begin <= after <= self._upto:
            return self._reset()
        newest_first = takewhile(lambda item: item[1] > after, reversed(self._last.items()))
        changed = list(newest_first)[::-1]
        told = changed[:limit]
        runs = [self._view.runs.get(run_id) for run_id, _ in told]
        if any(run is None and run_id not in self._cleared for (run_id, _), run in zip(told, runs, strict=True)):
            return self._reset()
        return {
            "reset": False,
            "upto": told[-1][1] if len(changed) > limit else self._upto,
            "more": len(changed) > limit,
            "runs": [line(run) for run in runs if run is not None and not run.cleared],
            "gone": [run_id for (run_id, _), run in zip(told, runs, strict=True) if run is None or run.cleared],
        }

    def _reset(self) -> dict[str, object]:
        return {"reset": True, "upto": self._upto, "more": False, "runs": [], "gone": []}


# A backup asks again and again that the ledger's snapshot be left as it is (`hold`). At the end it asks for the cut
# (`ledger.maintenance.cut`), which is made between two turns. If the backup dies, checkpoints go on after a while. If the supervisor dies,
# its next life knows nothing of this, and the backup begins again.
class BackupService:
    """What the supervisor does for those who look after the directory's files: `perdure doctor` and `perdure backup`.

    Args:
        storages: the folder of the agents' storages; None in a world without files.
        lost: tells how many ms were lost; silences in them do not count.
        wake: lets the next turn begin.
    """

    def __init__(
        self,
        world: World,
        view: View,
        store: Store,
        checkpoints: Checkpoints,
        storages: Path | None,
        *,
        lost: Callable[[float], object],
        wake: Callable[[], None],
    ) -> None:
        self._world, self._view, self._store, self._checkpoints = world, view, store, checkpoints
        self._storages, self._lost, self._wake = storages, lost, wake
        self._wanted: asyncio.Future[None] | None = None
        self._cut: Callable[[], None] | None = None

    def stored_below(self, agent_id: str) -> int:
        if self._store.carries_storages:
            return sum(each != agent_id for each in cast("CarryingStore", self._store).storages_of(agent_id))
        return 0 if self._storages is None else stored_below(self._storages, agent_id)

    # Raises `BadRequest` for any other wish.
    async def answer(self, asked: Keep) -> object:
        match asked:
            case Keep("storages", [str(after), int(limit)]):
                return await self._page(after, limit)
            case Keep("hold", []):
                # A later answer differs if the snapshot was not left alone in between.
                return [self._view.epoch, await self._checkpoints.suspend()]
            case Keep("cut", []):
                return await self._staged()
        raise BadRequest("wish", f"{asked.wish!r} is not one that a supervisor knows, or has other arguments")

    async def between_turns(self) -> None:
        wanted, cut = self._wanted, self._cut
        self._wanted = self._cut = None
        if wanted is None or cut is None:
            return
        began_s = asyncio.get_running_loop().time()
        try:
            await self._world.threads.commit(cut)
        except (StorageError, OSError) as problem:
            wanted.set_exception(self._failed(problem))
        else:
            wanted.set_result(None)
        self._lost((asyncio.get_running_loop().time() - began_s) * 1000)

    async def _page(self, after: str, limit: int) -> dict[str, object]:
        rows = await self._world.threads.archive(partial(self._store.agents, after, limit))
        last = rows[-1].key if len(rows) == limit else None
        known = standing_of(self._view, ((row.key, row.body) for row in rows))
        page = sorted(agent for agent in known if agent > after and (last is None or agent <= last))
        return {"agents": [[agent, *known[agent]] for agent in page], "next": last}

    async def _staged(self) -> list[int] | None:
        if self._storages is None:
            raise BadRequest("data", "there are no files in this world")
        data = self._storages.parent
        stage = data / STAGE
        try:
            known = await self._world.threads.archive(lambda: read_known(stage))
        except OSError as problem:
            raise self._failed(problem) from problem
        self._wanted = asyncio.get_running_loop().create_future()
        self._cut = lambda: stage_cut(
            data,
            stage,
            known,
            self._view.seq,
            [(agent, each.reported) for agent, each in standing_of(self._view, ()).items()],
        )
        self._wake()
        held = self._checkpoints.suspended
        await self._wanted
        # None tells the backup that the snapshot was not held to the end, so the cut does not go with its copy.
        return [self._view.epoch, held] if held is not None and held == self._checkpoints.suspended else None

    def _failed(self, problem: Exception) -> LedgerError:
        return LedgerError(
            str(self._storages), f"the cut of a backup could not be made: {problem}", "make the backup again"
        )


class MachineLogs:
    """Has the logs of machines read that share no directory: by a host there; if it does not answer soon, by another one; then by this
    process if the machine is its own, else by what the fleet can start there."""

    def __init__(self, world: World, sessions: Sessions, fleet: Fleet) -> None:
        self._world, self._sessions, self._fleet = world, sessions, fleet
        self._open: dict[str, asyncio.Future[LogsRead]] = {}
        self._greeted_s = asyncio.get_running_loop().time() + GREETED_S

    def _hosts(self, key: str = "") -> list[PeerSession]:
        # Whoever was heard last is most likely to answer.
        known = [each for each in self._sessions.by_peer.values() if each.logs and key in ("", each.logs)]
        return sorted(known, key=lambda each: each.seen_s, reverse=True)

    # The names of the machines, by keys.
    async def machines(self) -> dict[str, str]:
        if self._world.logs is None:
            return {}
        here = folder_key(self._world.logs)
        found = {here: self._world.vitals.node()} if here else {}
        hosts = self._hosts()
        found |= {host.logs: host.node for host in hosts}
        return found | await self._fleet.bare_nodes([host.peer_id for host in hosts])

    def told(self, said: LogsRead) -> None:
        answer = self._open.get(said.ref)
        if answer is not None and not answer.done():
            answer.set_result(said)

    # A page of a machine's logs, or why it is missing.
    async def read(self, asked: LogsOf) -> dict[str, object]:
        folder = self._world.logs
        is_own = folder is not None and asked.machine == folder_key(folder)
        greets_s = self._greeted_s - asyncio.get_running_loop().time()
        if greets_s > 0 and not is_own and not self._hosts(asked.machine):
            await asyncio.sleep(greets_s)
        hosts = self._hosts(asked.machine)[:HOSTS_ASKED]
        said = await self._read_by(hosts, asked)
        if said is not None and said.problem:
            return {"missing": f"those that {hosts[0].node} cannot read: {said.problem}"}
        if said is not None:
            return {"page": said.page}
        asked = asked._replace(hold_ms=0) if hosts else asked
        if folder is not None and is_own:
            return {"page": await read_logs(folder, asked, self._world.threads.run)}
        page = await self._fleet.read_logs(hosts[0].peer_id if hosts else asked.machine, list(asked))
        return {"missing": "those of a machine on which nothing answers"} if page is None else {"page": page}

    async def _read_by(self, hosts: list[PeerSession], asked: LogsOf) -> LogsRead | None:
        # The answer of any of them, of which the first may wait for something to be written.
        refs, within_s = list[str](), WITHIN_S / max(1, len(hosts))
        try:
            for host in hosts:
                ref, hold_ms = self._world.dice.token(), 0 if refs else asked.hold_ms
                refs.append(ref)
                self._open[ref] = asyncio.get_running_loop().create_future()
                host.say(ReadLogs(ref, list(asked._replace(hold_ms=hold_ms))))
                self._sessions.flush()
                answers = [self._open[each] for each in refs]
                timeout_s = hold_ms / 1000 + within_s
                done, _ = await asyncio.wait(answers, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
                if done:
                    return done.pop().result()
            return None
        finally:
            for ref in refs:
                del self._open[ref]


class Queries:
    """Answers the questions of peers. Each has a task of its own; what it reads is durable."""

    def __init__(
        self,
        world: World,
        tasks: Tasks,
        sessions: Sessions,
        books: Books,
        fleet: Fleet,
        backup_service: BackupService,
        replication: Replication | None,
    ) -> None:
        self._world, self._tasks, self._sessions = world, tasks, sessions
        self._backup_service, self._replication = backup_service, replication
        self.changes, self.machine_logs = Changes(books.view), MachineLogs(world, sessions, fleet)
        self._books = replace(books, supervisor=self._about)
        self.work = Work()
        self._open: list[tuple[PeerSession, str, Query]] = []
        self._rests_until_s = float("-inf")

    def add(self, session: PeerSession, ref: str, query: Query) -> None:
        self._open.append((session, ref, query))

    def answer_all(self) -> None:
        queries, self._open = self._open, []
        for session, ref, query in queries:
            self._tasks.start(self._answer(session, ref, query))

    async def _answer(self, session: PeerSession, ref: str, query: Query) -> None:
        try:
            answer = await self._answer_to(query)
        except PerdureError as problem:
            session.say(Reply(ref, ok=False, value=error_to_plain(problem)))
        except OSError:
            raise  # the ledger's disk: this life ends, and the next one is asked again
        except Exception as problem:
            # An error of ours says nothing about the ledger, so it is logged and is the answer; this life goes on.
            report_error(f"the question {type(query).__name__} failed", problem, asyncio.current_task())
            session.say(Reply(ref, ok=False, value=error_to_plain(problem)))
        else:
            session.say(Reply(ref, ok=True, value=answer))
        self._sessions.flush()

    async def _answer_to(self, query: Query) -> object:
        match query:
            case ChangedRuns(after, limit):
                return self.changes.since(after, limit)
            case LogMachines():
                return await self.machine_logs.machines()
            case LogsOf():
                return await self.machine_logs.read(query)
            case Keep():
                return await self._backup_service.answer(query)
            case WindDown():
                return self._wind_down()
        answer = query(self._books)
        if isinstance(query, Upgrade) and query.now:
            self._sessions.let_go(older_awake(self._books.view, query.agent_type))
        return await self._world.threads.read(answer.read) if isinstance(answer, Later) else answer

    @property
    def is_winding_down(self) -> bool:
        return asyncio.get_running_loop().time() < self._rests_until_s

    # So a supervisor comes to rest before it is stopped on purpose: nothing new begins, and idle agents leave at once. What is at work goes
    # on meanwhile, and what is cut off in the end goes on in its next attempt. Nothing of this is durable: the wish is said again and
    # again, so a supervisor goes on as before if the one that wanted to stop it has changed its mind, or died.
    def _wind_down(self) -> dict[str, object]:
        self._rests_until_s = asyncio.get_running_loop().time() + WISH_S
        for session in self._sessions.by_peer.values():
            if session.is_host:
                session.say(Passivate(begin_nothing_s=WISH_S))
        view = self._books.view
        here = [agent for host in view.hosts.values() for agent in host.tenants]
        waiting = sum(bool(view.awaiting.get(agent)) for agent in here)
        told: dict[str, object] = {"at_work": len(here) - waiting, "waiting": waiting}
        if self._replication is not None and self._replication.is_behind:
            told["replica_behind"] = True
        return told

    def _about(self) -> dict[str, object]:
        about = {"pid": self._world.vitals.pid(), "node": self._world.vitals.node(), **asdict(self.work)}
        return about if self._replication is None else {**about, "replica": self._replication.told()}
