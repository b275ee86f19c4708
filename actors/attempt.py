"""One attempt at a run, from the moment a host is given it to its report.

What a death at each line costs. Before the result is committed: the attempt, and what was not stepped, stashed or written. After it:
nothing, because the next life finds the result and reports it without running again. A child that never wrote anything has no storage; its
report itself makes its result durable, and until then it has not finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.activity import ACTIVITY, Activity
from actors.author import in_words, tried
from actors.ports import KillPoint
from actors.run_context import RunContext
from actors.schema import run_shapes
from ledger import (
    COLLECTED_NOTHING,
    NOT_RUNNABLE,
    START_FAILED,
    UNIMPORTABLE,
    Ended,
    StaleIncarnation,
    UnknownAgentType,
    Unstarted,
    Up,
    pack,
    unpack,
)

if TYPE_CHECKING:
    from actors.tenant import Tenant

Outcome = tuple[bytes | None, str, str | None]
"""Output, summary, error."""


async def carry(tenant: Tenant, run: RunContext, body: bytes, *, collect: bool) -> None:
    """Carry one attempt to its end, or take the result that an earlier one left."""
    kept, problem = await tried(_kept(tenant, run.run_id)) if run.attempt > 1 else (None, None)
    if problem is not None:
        _unstarted(tenant, run, START_FAILED, in_words(problem))
    elif kept is not None:
        _report(tenant, Ended(run.run_id, tenant.incarnation, *unpack(kept)))
    elif collect:
        _unstarted(
            tenant, run, COLLECTED_NOTHING, "its child was lost in every attempt that it may have, and left no result"
        )
    elif await _comes_up(tenant, run):
        await _run(tenant, run, body)


async def _kept(tenant: Tenant, run_id: str) -> bytes | None:
    """The result that an earlier attempt committed before it was lost."""
    return tenant.storage.result(run_id) if tenant.has_storage else None


async def _comes_up(tenant: Tenant, run: RunContext) -> bool:
    """Bring the agent up; what stands in the way is an outcome of the attempt."""
    _, problem = await tried(tenant.ready())
    if problem is not None:
        _unstarted(
            tenant, run, UNIMPORTABLE if isinstance(problem, UnknownAgentType) else START_FAILED, in_words(problem)
        )
    elif not callable(getattr(tenant.agent, "run", None)):
        _unstarted(tenant, run, NOT_RUNNABLE, f"{type(tenant.agent).__name__} has no `run` method")
    else:
        return True
    return False


async def _run(tenant: Tenant, run: RunContext, body: bytes) -> None:
    tenant.host.soon_up(Up(run.run_id, tenant.incarnation))
    ACTIVITY.set(Activity(run.run_id, run_id=run.run_id, run=run))
    tenant.faults.at(KillPoint.BEFORE_RUN, run.run_id)
    outcome = await _execute(tenant, run, body)
    run.close()
    if tenant.is_leaving and (outcome[2] is not None or tenant.host.tenants.get(tenant.agent_id) is not tenant):
        return  # it was told to stop; only a true result still counts (spec W-55), and only in the life that has the place
    _, problem = await tried(_keep(tenant, run.run_id, outcome))
    if isinstance(problem, StaleIncarnation):
        return
    if problem is not None:
        outcome = None, "", f"its result could not be stored: {in_words(problem)}"
    _report(tenant, Ended(run.run_id, tenant.incarnation, *outcome))


async def _keep(tenant: Tenant, run_id: str, outcome: Outcome) -> None:
    """Commit the result, so that a death from here on costs nothing. A chat remembers it by its turn, if it may be asked again."""
    if tenant.agent.recalls_results and tenant.agent.attempts_max != 1:
        return
    if tenant.is_storage_open and tenant.storage.exists:
        tenant.storage.save_result(run_id, pack(outcome))
        tenant.faults.at(KillPoint.AFTER_RESULT_COMMIT, run_id)


async def _execute(tenant: Tenant, run: RunContext, body: bytes) -> Outcome:
    """What the author's `run` came to."""
    done, problem = await tried(_work(tenant, run, body))
    if done is not None:
        return done
    words = in_words(problem) if problem is not None else "no outcome"
    return None, "", words[: tenant.limits.error_chars_max]


async def _work(tenant: Tenant, run: RunContext, body: bytes) -> Outcome:
    takes, gives, arguments = run_shapes(type(tenant.agent))
    value = takes.decode("input", body)
    outcome = await tenant.call(tenant.agent.run, *(value, run)[:arguments])
    return gives.encode("output", outcome, tenant.limits.output_bytes_max), _summary(tenant.agent, outcome), None


def _summary(agent: Any, outcome: Any) -> str:
    summarise = getattr(agent, "get_agent_tool_summary", None)
    if summarise is not None:
        return str(summarise(outcome))
    return outcome if isinstance(outcome, str) else ""


def _report(tenant: Tenant, ended: Ended) -> None:
    """Report the end; a child that has nothing else to do leaves in the same breath."""
    tenant.faults.at(KillPoint.BEFORE_REPORT, ended.run_id)
    tenant.host.ended(ended.run_id)
    if tenant.has_other_work:
        tenant.push(ended)
        tenant.host.touch(tenant)
    else:
        tenant.leave_with(ended._replace(released=True))


def _unstarted(tenant: Tenant, run: RunContext, cause: str, error: str) -> None:
    tenant.leave_with(Unstarted(run.run_id, tenant.incarnation, cause, error))
