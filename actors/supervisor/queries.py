"""Questions that are answered without a new fact: those of the books (`link.questions`), and those that are the supervisor's alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass

from perdure.actors.link.messages import Plain, Reply
from perdure.actors.link.questions import Books, ChangedRuns, Keep, Later, Query, Upgrade, WindDown
from perdure.actors.link.wire import error_to_plain
from perdure.actors.ports import World
from perdure.actors.supervisor.backup_service import BackupService
from perdure.actors.supervisor.changes import Changes
from perdure.actors.supervisor.drain import Drain
from perdure.actors.supervisor.replication import Replication
from perdure.actors.supervisor.sessions import PeerSession, Sessions
from perdure.actors.tasks import Tasks, report_error
from perdure.ledger import PerdureError, Store, View, older_awake
from perdure.policies import Limits


@dataclass
class Work:
    """What one life of the supervisor has done: how many commits it has made, how many milliseconds they took together, and how many the
    longest of its turns took besides its commit."""

    commits: int = 0
    commit_ms: float = 0.0
    longest_turn_ms: float = 0.0


class Queries:
    """Answers the questions of peers. Each has a task of its own; what it reads is durable."""

    def __init__(
        self,
        world: World,
        tasks: Tasks,
        now_ms: Callable[[], int],
        view: View,
        sessions: Sessions,
        store: Store,
        limits: Limits,
        *,
        findings: list[str],
        drain: Drain,
        backup_service: BackupService,
        changes: Changes,
        replication: Replication | None,
    ) -> None:
        self._world, self._tasks, self._sessions = world, tasks, sessions
        self._drain, self._backup_service, self._changes = drain, backup_service, changes
        self._replication = replication
        self._books = Books(view, store, limits, findings, now_ms, backup_service.stored_below, self._about)
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
