"""Questions that are answered without a new fact: those of the books (`link.questions`), and those that are the supervisor's alone."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, replace
from typing import Final

from perdure.actors.link.messages import Fields, LogsRead, Plain, ReadLogs, Reply
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
from perdure.actors.supervisor.backup_service import BackupService
from perdure.actors.supervisor.changes import Changes
from perdure.actors.supervisor.drain import Drain
from perdure.actors.supervisor.replication import Replication
from perdure.actors.supervisor.sessions import PeerSession, Sessions
from perdure.actors.tasks import Tasks, report_error
from perdure.ledger import PerdureError, older_awake

WITHIN_S: Final = 5.0
"""How long the hosts of a machine are waited for together, besides what they may wait themselves."""
HOSTS_ASKED: Final = 2


@dataclass
class Work:
    """What one life of the supervisor has done: how many commits it has made, how many milliseconds they took together, and how many the
    longest of its turns took besides its commit."""

    commits: int = 0
    commit_ms: float = 0.0
    longest_turn_ms: float = 0.0


class MachineLogs:
    """Has the logs of machines read that share no directory: by a host there; if it does not answer soon, by another one; then by this
    process if the machine is its own, else by what the fleet can start there."""

    def __init__(self, world: World, sessions: Sessions, fleet: Fleet) -> None:
        self._world, self._sessions, self._fleet = world, sessions, fleet
        self._open: dict[str, asyncio.Future[LogsRead]] = {}

    def _hosts(self, key: str = "") -> list[PeerSession]:
        # Whoever was heard last is most likely to answer.
        known = [each for each in self._sessions.by_peer.values() if each.logs and key in ("", each.logs)]
        return sorted(known, key=lambda each: each.seen_s, reverse=True)

    async def machines(self) -> dict[str, str]:
        """The names of the machines, by keys."""
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

    async def read(self, asked: LogsOf) -> Fields:
        """A page of a machine's logs, or why it is missing."""
        hosts = self._hosts(asked.machine)[:HOSTS_ASKED]
        said, folder = await self._read_by(hosts, asked), self._world.logs
        if said is not None and said.problem:
            return {"missing": f"those that {hosts[0].node} cannot read: {said.problem}"}
        if said is not None:
            return {"page": said.page}
        asked = asked._replace(hold_ms=0) if hosts else asked
        if folder is not None and asked.machine == folder_key(folder):
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
        *,
        drain: Drain,
        backup_service: BackupService,
        changes: Changes,
        replication: Replication | None,
        machine_logs: MachineLogs,
    ) -> None:
        self._world, self._tasks, self._sessions = world, tasks, sessions
        self._drain, self._backup_service, self._changes = drain, backup_service, changes
        self._replication, self.machine_logs = replication, machine_logs
        self._books = replace(books, supervisor=self._about)
        self.work = Work()
        self._open: list[tuple[PeerSession, str, Query]] = []

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

    async def _answer_to(self, query: Query) -> Plain:
        match query:
            case ChangedRuns(after, limit):
                return self._changes.since(after, limit)
            case LogMachines():
                return await self.machine_logs.machines()
            case LogsOf():
                return await self.machine_logs.read(query)
            case Keep():
                return await self._backup_service.answer(query)
            case WindDown():
                is_behind = self._replication is not None and self._replication.is_behind
                return {**self._drain.ask(), **({"replica_behind": True} if is_behind else {})}
        answer = query(self._books)
        if isinstance(query, Upgrade) and query.now:
            self._sessions.let_go(older_awake(self._books.view, query.agent_type))
        return await self._world.threads.read(answer.read) if isinstance(answer, Later) else answer

    def _about(self) -> dict[str, object]:
        about = {"pid": self._world.vitals.pid(), "node": self._world.vitals.node(), **asdict(self.work)}
        return about if self._replication is None else {**about, "replica": self._replication.told()}
