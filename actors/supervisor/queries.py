"""Questions that are answered from what is known, without a new fact."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, TypeAlias, TypeVar

from perdure.actors.link.keeping import AtStake, ChangedRuns, Keep, KeptFrames, PageOfRuns, ShowAgent, Upgrade, WindDown
from perdure.actors.link.messages import (
    Audit,
    Explain,
    Fields,
    Frames,
    Inspect,
    Known,
    ListRuns,
    Overview,
    Plain,
    Reply,
    Show,
    ShowLimits,
)
from perdure.actors.link.wire import error_to_plain
from perdure.actors.ports import World
from perdure.actors.supervisor.changes import Changes
from perdure.actors.supervisor.keeping import Keeping
from perdure.actors.supervisor.sessions import Session, Sessions
from perdure.actors.supervisor.winding_down import WindingDown
from perdure.actors.tasks import Tasks, report_error
from perdure.ledger import (
    HARD,
    Kept,
    PerdureError,
    Run,
    Store,
    UnknownRun,
    View,
    Wanted,
    about_agent,
    at_stake,
    audit,
    code_standings,
    explain,
    frame_of,
    inspected,
    line,
    listed,
    older_awake,
    overview,
    page_of,
    parked,
)
from perdure.policies import Limits

T = TypeVar("T")
Query: TypeAlias = (
    AtStake
    | Known
    | Inspect
    | Show
    | ShowAgent
    | Explain
    | Frames
    | ListRuns
    | Overview
    | Audit
    | ShowLimits
    | WindDown
    | Upgrade
    | Keep
    | PageOfRuns
    | ChangedRuns
    | KeptFrames
)
FRAMES_AT_ONCE: Final = 1_000
"""How many events an answer tells at most of several runs. A run of more is asked for alone."""


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
        winding_down: WindingDown,
        keeping: Keeping,
        changes: Changes,
    ) -> None:
        self._world, self._view, self._sessions, self._store, self._limits = world, view, sessions, store, limits
        self._tasks, self._now_ms, self._findings, self._winding_down = tasks, now_ms, findings, winding_down
        self._keeping, self._changes = keeping, changes
        self.work = Work()
        self._open: list[tuple[Session, str, Query]] = []

    def add(self, session: Session, ref: str, query: Query) -> None:
        """Take in a question."""
        self._open.append((session, ref, query))

    def answer_all(self) -> None:
        """Begin to answer the questions that have come in."""
        queries, self._open = self._open, []
        for session, ref, query in queries:
            self._tasks.start(self._answer(session, ref, query))

    async def _answer(self, session: Session, ref: str, query: Query) -> None:
        """Answer a question. An error of ours is logged, and is the answer: it says nothing about the ledger."""
        try:
            answer = await self._answer_to(query)
        except PerdureError as problem:
            session.say(Reply(ref, ok=False, value=error_to_plain(problem)))
        except OSError:
            raise  # the ledger's disk: this life ends, and the next one is asked again
        except Exception as problem:
            report_error(f"the question {type(query).__name__} failed", problem, asyncio.current_task())
            session.say(Reply(ref, ok=False, value=error_to_plain(problem)))
        else:
            session.say(Reply(ref, ok=True, value=answer))
        self._sessions.flush()

    async def _answer_to(self, query: Query) -> Plain:
        match query:
            case Known(run_ids):
                runs = self._view.runs
                return [run_id for run_id in run_ids if run_id in runs and not runs[run_id].cleared]
            case Inspect(run_id):
                run = self._view.runs.get(run_id)
                return None if run is None or run.cleared else await self._with_output(run)
            case Show(run_id):
                run = self._run(run_id)
                return {**await self._with_output(run), "options": run.options}
            case ShowAgent(agent_id):
                return about_agent(self._view, agent_id)
            case Explain(run_id):
                return explain(self._view, self._run(run_id), self._now_ms(), self._limits)
            case Frames(run_id, after):
                return await self._frames(self._run(run_id), after)
            case KeptFrames(run_ids):
                return await self._kept(run_ids)
            case ListRuns():
                return await self._with_the_snapshot(lambda runs: listed(runs, self._store.ended_runs(*query), *query))
            case PageOfRuns():
                wanted, limit = Wanted(*query[:-1]), query.limit
                page = await self._with_the_snapshot(
                    lambda runs: page_of(runs, self._store.newest_runs(wanted, limit + 1), wanted, limit)
                )
                return {"runs": [line(run) for run in page.runs], "next": page.next}
            case ChangedRuns(after, limit):
                return self._changes.since(after, limit)
            case Overview(live_max):
                about = {"pid": self._world.vitals.pid(), "node": self._world.vitals.node(), **asdict(self.work)}
                return {**overview(self._view, live_max), "supervisor": about}
            case Audit():
                return {**audit(self._view), "parked_mail": parked(self._view), "findings": self._findings}
            case ShowLimits():
                return asdict(self._limits)
            case Keep():
                return await self._keeping.answer(query)
            case AtStake(run_ids, agent):
                for run_id in run_ids:
                    self._run(run_id)
                found, below = at_stake(self._view, run_ids, agent), self._keeping.stored_below
                return await self._world.threads.read(lambda: found.told(below))
            case WindDown():
                return self._winding_down.ask()
            case Upgrade(agent_type, now):
                standings = code_standings(self._view, agent_type)
                if now:
                    self._sessions.let_go(older_awake(self._view, agent_type))
                return standings

    async def _with_the_snapshot(self, choose: Callable[[dict[str, Run]], T]) -> T:
        """What is in memory is looked through by the thread as well, so that the loop does not stand still. It is taken before the
        snapshot is asked, so that a run that leaves memory meanwhile is in one of the two."""
        runs = self._view.runs.copy()
        return await self._world.threads.read(lambda: choose(runs))

    def _run(self, run_id: str) -> Run:
        run = self._view.runs.get(run_id)
        if run is None or run.cleared:
            raise UnknownRun("run_id", f"no run {run_id!r} is known")
        return run

    async def _with_output(self, run: Run) -> Fields:
        told = inspected(run)
        if run.large_output:
            body = await self._world.threads.read(lambda: self._store.payload(run.run_id, "output"))
            told["output"] = None if body is None else Kept(body)
        return told

    async def _frames(self, run: Run, after: int) -> list[Fields]:
        rows = await self._world.threads.read(lambda: self._store.facts(run.run_id, after, frames_only=True))
        frames = (frame_of(row, run.options.get("tool_call"), replay=True) for row in rows)
        return [frame for frame in frames if frame is not None]

    async def _kept(self, run_ids: list[str]) -> list[list[Fields] | None]:
        """The events of the first of these runs, by one look at the store. It is bounded by the facts that the runs have."""
        told: list[Run | None] = []
        room = FRAMES_AT_ONCE
        for run_id in run_ids:
            run = self._view.runs.get(run_id)
            if run is None or run.cleared or run.status not in HARD or run.frames > FRAMES_AT_ONCE:
                told.append(None)
                continue
            room -= run.frames
            if room < 0:
                break
            told.append(run)
        ended = {run.run_id: run for run in told if run is not None}
        frames: dict[str, list[Fields]] = {run_id: [] for run_id in ended}
        if ended:
            span = min(run.first_seq for run in ended.values()), max(run.last_seq for run in ended.values())
            for row in await self._world.threads.read(lambda: self._store.frames(list(ended), *span)):
                frame = frame_of(row, ended[row.subject].options.get("tool_call"), replay=True)
                frames[row.subject] += [frame] if frame is not None else []
        return [None if run is None else frames[run.run_id] for run in told]
