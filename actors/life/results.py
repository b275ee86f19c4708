"""What an author is told of runs, and what an author may ask of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from perdure.ledger import BadRequest, check_ms


@dataclass(frozen=True, kw_only=True)
class AgentToolFailure:
    """Why a run has no result. `retryable` is true for an interruption alone: there the same call can still succeed (seed 003)."""

    status: Literal["error", "aborted", "interrupted"]
    error: str
    retryable: bool
    reason: str | None = None
    child_still_running: bool | None = None
    ok: Literal[False] = False


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Which run it is. `delivery_id` is the idempotency key of the mail that a handler is given; empty elsewhere."""

    run_id: str
    agent_type: str
    status: str = "starting"
    attempt: int = 1
    parent_tool_call_id: str | None = None
    display_order: int = 0
    display: dict[str, Any] | None = None
    input_preview: Any = None
    detached: bool = False
    started_at_ms: int = 0
    completed_at_ms: int | None = None
    delivery_id: str = ""
    source: str | None = None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a run ended, as far as is known: `interrupted` is soft, the other three are for ever."""

    run_id: str
    agent_type: str
    status: str
    output: Any = None
    summary: str = ""
    error: str = ""
    reason: str | None = None
    child_still_running: bool | None = None

    @property
    def ok(self) -> bool:
        """Whether the run completed."""
        return self.status == "completed"

    @property
    def failure(self) -> AgentToolFailure | None:
        """The typed failure, or None if the run completed."""
        if self.status not in ("error", "aborted", "interrupted"):
            return None
        words = self.error or f"the run was {self.status}"
        return AgentToolFailure(
            status=self.status,  # type: ignore[arg-type]
            error=words,
            retryable=self.status == "interrupted",
            reason=self.reason,
            child_still_running=self.child_still_running,
        )


@dataclass(frozen=True, kw_only=True)
class MilestoneInfo:
    """A milestone that a child reached: its name, its number in the run, and what the child said with it."""

    name: str
    sequence: int
    at_ms: int
    data: Any = None
    fraction: float | None = None
    message: str | None = None
    phase: str | None = None


@dataclass(frozen=True)
class RunHandle:
    """A detached run, accepted and durable. It can be awaited for symmetry, and is itself."""

    run_id: str
    agent_type: str
    status: str = "running"

    def __await__(self) -> Generator[None, None, RunHandle]:
        """Give back the handle itself, so that `await` is right in async code and harmless to leave out in a handler."""
        return self
        yield


@dataclass(frozen=True, kw_only=True)
class Detached:
    """How a parent follows a run that it does not wait for. Handlers are named, never closures: they must be found again after a death.

    Args:
        on_finish: method for the true end; also told of a give-up unless `on_give_up` is named.
        on_give_up: method for the give-up (`interrupted`).
        max_budget_ms: absolute budget from the request; 0 gives up at once, infinity never.
        no_progress_budget_ms: window of silence, reset by every signal once there was one; 0 and infinity are off.
        on_milestones: names of milestones to be told of, each once per run.
        on_milestone: method that is told of them.
        notify: whether (or from which source) a chat parent is told by a message.
    """

    on_finish: str | None = None
    on_give_up: str | None = None
    max_budget_ms: float | None = None
    no_progress_budget_ms: float | None = None
    on_milestones: Sequence[str] | dict[str, Any] = field(default_factory=tuple)
    on_milestone: str | None = None
    notify: bool | dict[str, Any] = False

    def options(self) -> dict[str, Any]:
        """The options as plain data; only what was given."""
        told: dict[str, Any] = {"detached": True}
        for name in ("on_finish", "on_give_up", "on_milestone"):
            if getattr(self, name) is not None:
                told[name] = getattr(self, name)
        for name in ("max_budget_ms", "no_progress_budget_ms"):
            value = getattr(self, name)
            if value is not None:
                told[name] = check_ms(name, value)
        if self.on_milestones:
            told["milestones"] = self._milestones()
        if self.notify:
            told["notify"] = True
            told["source"] = self.notify.get("source") if isinstance(self.notify, dict) else None
        return told

    def _milestones(self) -> dict[str, Any]:
        given = self.on_milestones
        names, mode = (
            (given.get("names", ()), given.get("mode", "narrate")) if isinstance(given, dict) else (given, "narrate")
        )
        if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
            raise BadRequest("on_milestones", f"{names!r} is not a list of milestone names")
        if mode not in ("narrate", "react"):
            raise BadRequest("on_milestones", f"{mode!r} is not a mode; it is 'narrate' or 'react'")
        return {"names": list(names), "mode": mode}
