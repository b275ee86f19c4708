"""A turn while it is played: its row, its stream, and its tool calls, which begin once and are settled by the life that sees them end.

A call is durable (its `tool-input-available` event) before it begins. Then, by kind of tool:

    function   a run under an id derived from turn and call. Beginning it asks the ledger for it, and asking again is harmless: a run
               that is over gives its result, one that goes on is awaited, an unknown one begins. So a turn that is played again after
               a death asks again, and nothing starts twice. A run may ask for approval (`put_off`); a second one has it
    agent      the same, with the child's own class
    inline     in this process. Its beginning is recorded first. A later life that finds a beginning and no end knows that the call
               died, and begins it again only if the tool allows that
    client     executed by the client, once a person has allowed it if somebody must; the turn is parked until the answer comes

A call that died is told to the model as an error with a caution and the evidence, and the turn goes on (transport spec §4.3).
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from perdure.actors.chat.chat_messages import shortened_content, shortened_result
from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.tool_run import (
    DEFERRED,
    TIMED_OUT,
    UNAPPROVED,
    RepeatableToolRun,
    ToolEnd,
    ToolRun,
    approval_request,
    call_run_id,
    execute,
    first_run_id,
    is_approved,
    put_off,
)
from perdure.actors.chat.tool_schema import ToolContext
from perdure.actors.chat.tools import Approval, Tool, Toolset, client_tools
from perdure.actors.chat.toolsets import listed
from perdure.actors.chat.transcript import aborted, died, evidence_of
from perdure.actors.chat.turn import Turn
from perdure.actors.code.author_call import in_words, text_of, tried
from perdure.actors.life.activity import ACTIVITY, CALL
from perdure.actors.life.child_types import RunOptions
from perdure.actors.life.host_options import Placement
from perdure.actors.life.results import Detached, RunHandle, RunResult
from perdure.actors.ports import KillPoint
from perdure.actors.telemetry.telemetry import TOOL
from perdure.ledger import APPROVAL, Cancel, Status, TooLarge
from perdure.policies import (
    CallStage,
    Event,
    JsonObject,
    NoResult,
    OurMetadata,
    Part,
    caution,
    deferred_ids,
    is_settled,
    is_tool_part,
    told_of,
    tool_name,
    waiting_calls,
)

STATUS_AFTER_S = 5.0
NO_RESULT = "The provider began this call itself, and its answer ended without the result."


class LiveTurn:
    """One turn in this life of its agent."""

    def __init__(self, state: ConversationState, turn: Turn) -> None:
        self.turn, self.stream = turn, state.stream_of(turn)
        self._state, self._agent, self._tenant = state, state.agent, state.tenant
        self.origin = state.origin_of(turn)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_abandoned = False
        self._for_client: set[str] = set()  # the client's calls that need no approval, or have it

    @property
    def activity(self) -> str:
        # The piece of work that it is: the origin of what its author's code asks for.
        return f"turn/{self.origin}"

    @cached_property
    def tools(self) -> Toolset:
        # The author's code may raise.
        return self._state.toolset().plus(self.client_tools())

    def client_tools(self) -> list[Tool]:
        return client_tools(self.turn.options.get("client_tools", ()))

    def add_tool(self, tool: Tool) -> None:
        if tool.name not in self.tools:
            self.__dict__["tools"] = self.tools.plus([tool])

    async def open_toolsets(self) -> None:
        if self._agent.toolsets:
            found = await listed(type(self._agent), self._tenant.code_dir, self._tenant.trouble)
            self.__dict__["tools"] = self.tools.plus(found)

    def is_settled(self, call_id: str) -> bool:
        part = self._part(call_id)
        return part is None or is_settled(part)

    async def performed(self, call_id: str) -> Part | None:
        # The call is executed to its end. None if a person is to act first.
        while True:
            part = self._part(call_id)
            assert part is not None, "a call is in the stream before it is executed"
            if is_settled(part):
                return part
            task = self._begin(part)
            if task is None:
                return None
            await asyncio.wait([task])
            task.result()

    def announced(self, call_id: str) -> None:
        # It begins while the model still speaks.
        part = self._part(call_id)
        if part is not None and part.get("state") == "input-available" and not part.get("providerExecuted"):
            self._begin(part)

    def _part(self, call_id: str) -> Part | None:
        parts = self.stream.parts
        return next((each for each in reversed(parts) if each.get("toolCallId") == call_id), None)

    def stage(self, part: Part) -> CallStage:
        state = part.get("state")
        if is_settled(part):
            return CallStage.DEAD if told_of(part).get("outcome") == "unknown" else CallStage.FINISHED
        if state == "input-streaming":
            return CallStage.WRITING
        if part["toolCallId"] in self._tasks:
            return CallStage.RUNNING
        return CallStage.ASKED if state == "approval-requested" else CallStage.READY

    async def settle(self) -> bool:
        # Waits until every call is settled or waits for a person. Returns whether one waits for a person.
        while True:
            unsettled = [part for part in self.stream.parts if is_tool_part(part) and not is_settled(part)]
            for part in unsettled:
                if part.get("providerExecuted"):
                    self._failed(part["toolCallId"], NO_RESULT)
            begun = [self._begin(part) for part in unsettled if not part.get("providerExecuted")]
            waiting = [task for task in begun if task is not None and not task.done()]
            if not waiting:
                return self.awaits_person()
            await self._wait(waiting)
            for task in waiting:
                task.result()

    def awaits_person(self) -> bool:
        return bool(self.waiting(self.stream.parts))

    def waiting(self, parts: list[Part]) -> list[Part]:
        # Those of these calls that wait for their client, for an approval, or for a result from elsewhere.
        return waiting_calls(parts, self.tools.client_names)

    async def drain(self, limit_ms: float | None = None) -> None:
        # A lost connection to the provider is no reason to stop a tool.
        waiting = [task for task in self._tasks.values() if not task.done()]
        if waiting and limit_ms is not None:
            await asyncio.wait(waiting, timeout=limit_ms / 1000)
        elif waiting:
            await self._wait(waiting)

    def abandon(self) -> None:
        # The storage failed. Whoever takes the turn up asks for the runs of these calls again.
        self._is_abandoned = True
        for task in self._tasks.values():
            task.add_done_callback(lambda task: None if task.cancelled() else task.exception())
            self._tenant.give_up(task)

    async def _wait(self, tasks: list[asyncio.Task[None]]) -> None:
        _, pending = await asyncio.wait(tasks, timeout=STATUS_AFTER_S)
        if pending:
            names = sorted(call_id for call_id, task in self._tasks.items() if task in pending)
            self.stream.add({"type": "data-status", "transient": True, "data": {"waitingFor": names}})
            await asyncio.wait(tasks)

    def give_up(self, why: str) -> None:
        for part in self.stream.parts:
            if is_tool_part(part) and not is_settled(part) and part["toolCallId"] not in self._tasks:
                words = caution(NoResult.NEVER_RAN, tool_name(part), part["toolCallId"], ended_by=why)
                self.stream.add({"type": "tool-output-error", "toolCallId": part["toolCallId"], "errorText": words})

    async def stop_calls(self, reason: str) -> None:
        for task in self._tasks.values():
            self._tenant.give_up(task)
        running = [task for task in self._tasks.values() if not task.done()]
        if running:
            await asyncio.wait(running)
        for part in self.stream.parts:
            if is_tool_part(part) and not is_settled(part) and part.get("state") != "input-streaming":
                await self._stop(part, reason)

    async def _stop(self, part: Part, reason: str) -> None:
        # If its run has completed, its result counts.
        call_id, tool = part["toolCallId"], self.tools.get(tool_name(part))
        began = await self._began(part, tool)
        is_run = call_id not in deferred_ids(self.stream.parts)
        if began and is_run and (tool is None or tool.kind in ("function", "agent")):
            await tried(self._tenant.ask(Cancel(self.run_id(call_id), self._tenant.agent_id, reason)))
            told = await self._tenant.dispatch.inspect(self.run_id(call_id))
            if tool is not None and told is not None and told["status"] == Status.COMPLETED:
                await (self._child(part, tool) if tool.kind == "agent" else self._function(part, tool))
                return
        words = aborted(part, began=began, is_question=tool is not None and tool.kind == "client")
        self.stream.add({"type": "tool-output-error", "toolCallId": call_id, "errorText": words})

    async def _began(self, part: Part, tool: Tool | None) -> bool:
        # In this life of the turn or in an earlier one (B7, B9).
        call_id = part["toolCallId"]
        if call_id in self._tasks or part.get("state") == "approval-requested":
            return call_id in self._tasks
        if tool is not None and tool.kind == "inline":
            return call_id in self._state.store.calls(self.turn.request_id)
        # The tools of a toolset that this life has not opened are not known, and their runs are.
        is_run = tool is None or tool.kind != "client"
        return is_run and await self._tenant.dispatch.inspect(self.run_id(call_id)) is not None

    async def runs(self) -> list[dict[str, Any]]:
        found = []
        for part in self.stream.parts:
            tool = None if not is_tool_part(part) or is_settled(part) else self.tools.get(tool_name(part))
            if tool is not None and tool.kind in ("function", "agent"):
                found.append(await self._tenant.dispatch.inspect(self.run_id(part["toolCallId"])))
        return [told for told in found if told is not None]

    # one call

    def run_id(self, call_id: str) -> str:
        return call_run_id(self.origin, call_id, self._part(call_id))

    def _begin(self, part: Part) -> asyncio.Task[None] | None:
        call_id, tool = part["toolCallId"], self.tools.get(tool_name(part))
        if call_id in self._tasks:
            return self._tasks[call_id]
        if part.get("state") in ("approval-requested", "input-streaming") or self._is_for_client(part, tool):
            return None
        task = self._tasks[call_id] = self._tenant.spawn_awaited(self._execute(part, tool))
        return task

    def _is_for_client(self, part: Part, tool: Tool | None) -> bool:
        # True if an answer is all that is missing, the client's or one from elsewhere, and no approval.
        if tool is None or tool.kind != "client":
            return part["toolCallId"] in deferred_ids(self.stream.parts)
        was_asked = part.get("state") == "approval-responded" or part["toolCallId"] in self._for_client
        return was_asked or tool.needs_approval is False

    async def _execute(self, part: Part, tool: Tool | None) -> None:
        call_id = part["toolCallId"]
        if tool is None:
            known = ", ".join(each.name for each in self.tools) or "none"
            self._failed(call_id, f"There is no tool of this name. The tools are: {known}.")
            return
        if part.get("state") == "input-available" and await self._needs_approval(part, tool):
            del self._tasks[call_id]
            return
        if tool.kind == "client":
            self._for_client.add(call_id)
            del self._tasks[call_id]
            return
        if part.get("state") == "approval-responded":
            self._state.lost_calls.approved(tool, part.get("input"))
        refusal = self._state.lost_calls.refusal(tool, part.get("input"))
        if refusal is not None:
            self._failed(call_id, refusal)
            return
        self.stream.flush()  # the intent is durable before the call
        self._tenant.faults.at(KillPoint.MID_TOOL, "before")
        perform = {"inline": self._inline, "agent": self._child}.get(tool.kind, self._function)
        try:
            await perform(part, tool)
        except TooLarge as refusal:  # its arguments, for a run
            self._failed(call_id, f"This call was not executed: {refusal}")
        self._tenant.faults.at(KillPoint.MID_TOOL, "after")

    async def _needs_approval(self, part: Part, tool: Tool) -> bool:
        wanted, problem = await tried(
            self._tenant.call_hook(partial(tool.wants_approval, part.get("input"), self._agent))
        )
        if not wanted and problem is None:
            return False
        call_id, about = part["toolCallId"], {} if problem is None else {"problem": in_words(problem)}
        if isinstance(wanted, Approval):
            self.turn.asks[f"{APPROVAL} {call_id}"] = [*wanted.asked(self._tenant.now_ms(), self.turn.began_by)]
        self.stream.add(approval_request(call_id, call_id, about))
        self.stream.flush(then=self._state.asks_changed)
        return True

    async def _function(self, part: Part, tool: Tool) -> None:
        call_id = part["toolCallId"]
        child = ToolRun if tool.effect == "once" else RepeatableToolRun
        given = {"tool": tool.reference(self._tenant.code_dir), "input": part.get("input"), "call_id": call_id}
        given["key"] = first_run_id(self.origin, call_id)
        more = {"timeout_ms": tool.limit_ms(self._agent.tool_timeout_ms), "approved": is_approved(part)}
        given |= {name: value for name, value in more.items() if value}
        result = await self._run(child, given, call_id, display={"name": tool.name}, placement=tool.placement)
        if result.ok:
            self._settled(part, tool, result.output)
        else:
            await self._died(part, tool, result)

    async def _child(self, part: Part, tool: Tool) -> None:
        assert tool.agent_class is not None
        TOOL.set(tool.name)
        call_id = part["toolCallId"]
        given, problem = await tried(self._tenant.call_hook(partial(tool.agent_input, part.get("input"))))
        if problem is not None:
            self._failed(call_id, text_of(problem))
            return
        result = await self._run(tool.agent_class, given, call_id, display=tool.display, detached=tool.detached)
        if isinstance(result, RunHandle):
            self._returned(call_id, {"runId": self.run_id(call_id), "status": "running"})
            return
        output, problem = await tried(self._tenant.call_hook(partial(tool.answer, result)))
        if problem is not None:
            self._failed(call_id, text_of(problem))
        else:
            unknown = result.status == "interrupted" and result.child_still_running is not False
            self._returned(call_id, output, self._evidence(part, result) if unknown else None)

    async def _run(
        self,
        child: type,
        given: object,
        call_id: str,
        *,
        display: JsonObject | None,
        detached: bool | Detached = False,
        placement: Placement | None = None,
    ) -> Any:
        options: RunOptions = {"run_id": self.run_id(call_id), "parent_tool_call_id": call_id, "display": display}
        if not detached:
            # `_stop` cancels it with the turn's reason; else a later life of the turn takes it up
            options["on_cancel"] = "leave"
        return await self._tenant.dispatch.run(child, given, detached=detached, placement=placement, **options)

    async def _inline(self, part: Part, tool: Tool) -> None:
        call_id = part["toolCallId"]
        CALL.set(self.run_id(call_id))
        activity = ACTIVITY.get()
        if activity is not None:  # what it asks for is told apart from what other calls ask for meanwhile
            ACTIVITY.set(replace(activity, origin=self.run_id(call_id), within=activity.origin, step="", asked={}))
        known, spans = self._state.store.calls(self.turn.request_id).get(call_id), self._state.spans
        if known is not None:
            spans.lost_tool(self.turn, part, known["attempt"], known["at_ms"])
        context = self._context(call_id, self.turn.run_id, 1 if known is None else known["attempt"] + 1)
        if known is not None and tool.effect == "once":
            await self._died(part, tool, None, context)
            return
        if tool.effect != "pure":  # a later life must know that the call has begun
            self.stream.flush(calls=[(call_id, {"attempt": context.attempt, "at_ms": self._state.tenant.now_ms()})])
            await self._tenant.services.until_durable()
        with spans.tool(self.turn, part, context.attempt) as ended:
            limit_ms = tool.limit_ms(self._agent.tool_timeout_ms)
            end = await execute(self._tenant, tool, part.get("input"), context, limit_ms)
            ended(end)
        self._settled(part, tool, end)

    def _context(self, call_id: str, run_id: str, attempt: int = 1) -> ToolContext:
        return ToolContext(
            call_id=call_id,
            run_id=run_id,
            attempt=attempt,
            idempotency_key=first_run_id(self.origin, call_id),
            report_progress=self._agent.report_progress,
            asked_to_stop=lambda: self._is_abandoned or self.turn.cancelled is not None,
            approved=is_approved(self._part(call_id)),
            asks=self._tenant.asking.ask,
        )

    # how it ended

    def _settled(self, part: Part, tool: Tool, end: ToolEnd) -> None:
        call_id = part["toolCallId"]
        if end["ok"]:
            self._returned(call_id, end.get("output"), end.get("beside"))
        elif end.get("kind") == TIMED_OUT and tool.effect != "pure":
            over = "its time was over"
            words = caution(NoResult.DIED, tool.name, call_id, effect=tool.effect, ended_by=over, evidence=end["error"])
            self._failed(call_id, words, {"outcome": "unknown", "cause": TIMED_OUT})
        elif end.get("kind") in (UNAPPROVED, DEFERRED):
            self._tasks.pop(call_id, None)
            self.stream.add(put_off(call_id, self.run_id(call_id), end))
        else:
            self._failed(call_id, end["error"])

    def _returned(self, call_id: str, output: object, about: OurMetadata | None = None) -> None:
        said: Event = {"type": "tool-output-available", "toolCallId": call_id, "output": shortened_result(output)}
        if about is not None and "content" in about:
            about["content"] = shortened_content(about["content"])
        self._record_end(said, about)

    def _failed(self, call_id: str, words: str, evidence: OurMetadata | None = None) -> None:
        said: Event = {"type": "tool-output-error", "toolCallId": call_id, "errorText": shortened_result(words)}
        self._record_end(said, evidence)

    def _record_end(self, event: Event, about: OurMetadata | None) -> None:
        # Durable at once, whatever happens to the connection (spec §4.11).
        if about is not None:
            event["providerMetadata"] = {"perdure": about}
        self.stream.add(event)
        self.turn.failures = 0
        part = self._part(event["toolCallId"])
        tool = None if part is None else self.tools.get(tool_name(part))
        if part is not None and tool is not None:
            self._state.lost_calls.settled(part, tool)
        self.stream.flush()

    async def _died(self, part: Part, tool: Tool, result: RunResult | None, context: ToolContext | None = None) -> None:
        # A probe may know how it ended; else the model is told the evidence.
        call_id = part["toolCallId"]
        context = context or self._context(call_id, self.run_id(call_id))
        probed, problem = await tried(
            self._tenant.call_hook(partial(tool.probed, part.get("input"), context, self._agent))
        )
        is_known = problem is None and isinstance(probed, bool)
        evidence = self._evidence(part, result)
        words = died(part, tool, evidence, probed if is_known else None)
        self._failed(call_id, words, None if is_known else evidence)

    def _evidence(self, part: Part, result: RunResult | None) -> OurMetadata:
        return evidence_of(part, self.run_id(part["toolCallId"]), result, self._state.tenant.now_ms())
