"""The spans of runs, made by the supervisor from the facts that it has committed.

Each attempt at a run is a span, from its placement on a host to its end: the child's report, its loss, a cancellation, or the end of its
parent's patience. A later attempt has a link to the one before. A run whose child is a tool is `execute_tool`; any other is `invoke_agent`,
and below a span `execute_tool` if a model asked for it. A run has no span above its attempts: tools that count `invoke_agent` would count
each agent twice.

Nothing is kept for this that the ledger does not have, except for speed: after a death of the supervisor the record of the run tells when
its present attempt began. The facts of the last moments before a death are told once more, under the same ids, because a collector may
not have been told of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, NamedTuple

from perdure.actors.telemetry.conventions import about_tool, class_of, content_of_call, is_function, over_attempts
from perdure.actors.telemetry.telemetry import CARRIED, CARRIED_TOOL, Telemetry
from perdure.ledger import (
    AttemptLost,
    AttemptStarted,
    FactRow,
    Row,
    Run,
    RunInterrupted,
    RunParked,
    RunSucceeded,
    RunWaiting,
    Status,
    View,
    decode,
    expand_rows,
    shown,
    taken_out,
)
from perdure.policies import (
    EXECUTE_TOOL,
    INVOKE_AGENT,
    OPERATION,
    OURS,
    PROVIDER,
    Attribute,
    EndedSpan,
    TraceContext,
    call_span,
    error_type,
    run_span,
    within,
)

AGAIN_MS: Final = 2_000
"""For how long before the last fact of a life its spans are told again by the next one."""


class _Begun(NamedTuple):
    """The last attempt at a run. With `is_late` its parent gave up at `at_ms`, and its span was told; with `is_over` nothing is to be told
    of it any more."""

    attempt: int
    at_ms: int
    host_id: str = ""
    is_late: bool = False
    is_over: bool = False


class RunSpans:
    """Tells of the runs of one life of the supervisor."""

    def __init__(self, view: View, telemetry: Telemetry) -> None:
        self._view, self._telemetry = view, telemetry
        self._last: dict[str, _Begun] = {}

    def take_up(self, rows: list[Row]) -> None:
        # The last moments of the life before are told once more, because a collector may not have been told of them.
        if not self._telemetry.is_on:
            return
        self.see(expand_rows(row for row in rows if row.at_ms >= rows[-1].at_ms - AGAIN_MS))
        open_runs = [run for run in self._view.runs.values() if not run.is_hard]
        self._last = {run.run_id: _in_record(run) for run in open_runs}

    def see(self, rows: Iterable[FactRow]) -> None:
        # These facts are durable.
        for row in rows:
            step = self.STEPS.get(row.kind)
            run = self._view.runs.get(row.subject) if step is not None else None
            if step is not None and run is not None:
                step(self, run, decode(row.kind, row.body), row.at_ms)

    # one fact

    def _begins(self, run: Run, fact: AttemptStarted, at_ms: int) -> None:
        self._last[run.run_id] = _Begun(fact.attempt, at_ms, fact.host_id)

    def _breaks_off(
        self, run: Run, fact: AttemptLost | RunParked | RunWaiting, at_ms: int, status: str, error: str
    ) -> None:
        if self._of(run).attempt == fact.attempt:
            self._attempt(run, at_ms, status, error)

    def _completes(self, run: Run, fact: RunSucceeded, at_ms: int) -> None:
        error = "tool_error" if is_function(run.agent_type) and fact.summary else ""
        self._ends(run, at_ms, Status.COMPLETED, error, fact.output)

    def _is_given_up(self, run: Run, fact: RunInterrupted, at_ms: int) -> None:
        begun = self._of(run)
        self._ends(run, at_ms, Status.INTERRUPTED, fact.reason)
        self._last[run.run_id] = begun._replace(at_ms=at_ms, is_late=True)

    STEPS: ClassVar[dict[str, Callable[[RunSpans, Run, Any, int], object]]] = {
        "AttemptStarted": _begins,
        "AttemptLost": lambda self, run, fact, at_ms: self._breaks_off(run, fact, at_ms, "lost", "host_lost"),
        "RunSucceeded": _completes,
        "RunErrored": lambda self, run, fact, at_ms: self._ends(
            run, at_ms, Status.ERROR, error_type(fact.error, "failed")
        ),
        "RunAborted": lambda self, run, _, at_ms: self._ends(run, at_ms, Status.ABORTED, "cancelled"),
        "RunInterrupted": _is_given_up,
        "RunWaiting": lambda self, run, fact, at_ms: self._breaks_off(run, fact, at_ms, "waiting", ""),
        "RunParked": lambda self, run, fact, at_ms: self._breaks_off(run, fact, at_ms, "parked", "unfit"),
        "RunCleared": lambda self, run, *_: self._last.pop(run.run_id, None),
    }

    # the spans

    def _of(self, run: Run) -> _Begun:
        return self._last.get(run.run_id) or _in_record(run)

    def _ends(self, run: Run, at_ms: int, status: Status, error: str, output: bytes | None = None) -> None:
        # The first time, the tool call that asked for the run is told of too.
        is_first = not (self._of(run).is_late or run.retries)
        self._attempt(run, at_ms, status, error, output)
        self._last.pop(run.run_id, None)
        if is_first and run.options.get("tool_call") and not is_function(run.agent_type):
            above = self._above(run)
            name = str(run.options.get(CARRIED_TOOL) or class_of(run.agent_type))
            told = {**self._about(run, EXECUTE_TOOL, name), **self._content(run, output)}
            # A call that detaches the run is over at once.
            ended_ms = run.requested_at_ms if run.options.get("detached") else at_ms
            times = run.requested_at_ms, ended_ms
            span = EndedSpan(f"{EXECUTE_TOOL} {name}", call_span(above, run.run_id), above.span_id, *times, told)
            self._telemetry.tell(span._replace(error=error))

    def _attempt(self, run: Run, at_ms: int, status: str, error: str, output: bytes | None = None) -> None:
        # A run that ends before it was placed anywhere has an attempt 0.
        begun = self._of(run)
        if begun.is_over:  # it was told when the attempt was lost or parked
            return
        self._last[run.run_id] = begun._replace(is_over=True)
        above = over_attempts(self._above(run), run.run_id, run.agent_type, run.options.get("tool_call"))
        context = run_span(above, run.run_id, begun.attempt)
        links: tuple[TraceContext, ...] = ()
        if begun.is_late:
            context, links = within(above, "late", run.run_id, begun.attempt), (context,)
        elif begun.attempt > 1:
            links = (run_span(above, run.run_id, begun.attempt - 1),)
        operation, name = INVOKE_AGENT, class_of(run.agent_type)
        if is_function(run.agent_type):
            operation, name = EXECUTE_TOOL, str((taken_out(run.options.get("display")) or {}).get("name") or "tool")
        told = self._about(run, operation, name)
        told |= {"perdure.run.attempt": begun.attempt, "perdure.run.status": str(status)}
        told |= {"perdure.host.id": begun.host_id} if begun.host_id else {}
        told |= self._content(run, output) if is_function(run.agent_type) else {}
        start_ms = begun.at_ms
        self._telemetry.tell(
            EndedSpan(f"{operation} {name}", context, above.span_id, start_ms, at_ms, told, links, error)
        )

    def _above(self, run: Run) -> TraceContext:
        return self._telemetry.above(run.options.get(CARRIED), "run", run.run_id)

    def _about(self, run: Run, operation: str, name: str) -> dict[str, Attribute]:
        told: dict[str, Attribute] = {OPERATION: operation, "perdure.run.id": run.run_id}
        if operation == INVOKE_AGENT:
            return told | {PROVIDER: OURS, "gen_ai.agent.name": name, "gen_ai.agent.id": run.child}
        return told | about_tool(name, run.options.get("tool_call"))

    def _content(self, run: Run, output: bytes | None) -> dict[str, Attribute]:
        # The arguments and the result of a tool, if they are to be told and stand in the record.
        if not self._telemetry.tells_content:
            return {}
        given = shown(run.input) if run.input is not None else None
        came = shown(output) if output is not None else None
        if is_function(run.agent_type):
            given = given.get("input") if isinstance(given, dict) else None
            came = came.get("output", came.get("error")) if isinstance(came, dict) else None
        return content_of_call(given, came)


def _in_record(run: Run) -> _Begun:
    if not run.attempt:
        return _Begun(0, run.requested_at_ms)
    is_late = run.status is Status.INTERRUPTED
    is_over = bool(run.parked or run.wait) or (0 < run.placed_at_ms <= run.lost_at_ms)
    return _Begun(run.attempt, run.ended_at_ms if is_late else run.placed_at_ms, run.host_id, is_late, is_over)
