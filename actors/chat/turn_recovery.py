"""How turns end, and what becomes of one after something went wrong: decided by `policies`, written into the turn's row, done here.

    a request failed      `failed`    replay or continue, under the budget of the turn
    the stream stalled    `stalled`   the attempt is over for its followers, and the turn goes on as after a death
    the process died      `begin`     the next life finds the row, and the turn goes on
    the author's code     `raised`    the turn ends in an error

A kill between any two lines costs nothing but the attempt. The incident is durable before the next attempt begins, so attempts are counted
however they end. The end of a turn is one commit of its row, its message and its last event. Every error is put into words before it is
written into the turn's row. So what is shown, what is stored and what `attach` tells later are the same words.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from perdure.actors.chat.conversation_state import ConversationState
from perdure.actors.chat.history import Compaction, History
from perdure.actors.chat.live_turn import LiveTurn
from perdure.actors.chat.stream import Stream
from perdure.actors.chat.transcript import late_results
from perdure.actors.chat.turn import ChatRecoveryContext, Turn, text_in
from perdure.actors.chat.watchdog import Stalled
from perdure.actors.code.author_call import in_words, kind_of, raised_by, sendable, tried
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.ledger import pack, unpack
from perdure.policies import (
    AttemptFacts,
    CallFacts,
    ChatRecovery,
    Evaluation,
    Event,
    Failure,
    FailureKind,
    Incident,
    IncidentStatus,
    JsonObject,
    Message,
    Mode,
    Part,
    RecoveryKind,
    TurnBudget,
    TurnEvent,
    TurnInterruption,
    TurnStatus,
    classify_turn,
    decide,
    error_text,
    evaluate,
    exhausted_context,
    is_tool_part,
    keeps_partial,
    next_delay_ms,
    notice_of,
    progress_context,
    recovery_pause_ms,
    stalled,
    tool_name,
)


class TurnOutcome(NamedTuple):
    """An end of a turn, or `PARKED`, which waits for a person.

    `stage` is where an error came from: `turn` (the author's code, the model's name), `stream` (the provider), `recovery` (the budget).
    """

    event: TurnEvent
    error: str = ""
    reason: str = ""
    notice: JsonObject | None = None
    stage: str = "turn"

    @property
    def last_event(self) -> Event:
        if self.event is TurnEvent.COMPLETED:
            return {"type": "finish"}
        if self.event is TurnEvent.ABORTED:
            return {"type": "abort", "reason": self.error}
        return {"type": "error", "errorText": self.error or "The turn failed for an unknown reason."}


async def reported(state: ConversationState, turn: Turn, outcome: TurnOutcome) -> TurnOutcome:
    # A text that `on_chat_error` returns replaces an error.
    if outcome.event is not TurnEvent.FAILED:
        return outcome
    if state.tenant.overrides("on_chat_error"):
        info = {"request_id": turn.request_id, "stage": outcome.stage, "reason": outcome.reason}
        hearing = state.tenant.call_in_turn(state.agent.on_chat_error, outcome.error, info)
        shown, problem = await tried(state.tenant.bounded(hearing))
        if problem is not None:
            state.tenant.trouble("on_chat_error", problem)
        if isinstance(shown, str) and shown.strip():
            outcome = outcome._replace(error=sendable(shown))
    if outcome.stage != "recovery":  # a recovery emits events of its own
        told = {"stage": outcome.stage, "reason": outcome.reason, "error": outcome.error}
        state.emit("chat:request:failed", turn, told)
    return outcome


class ResponseHook:
    """Calls `on_chat_response` after turns, one call after the other, in the order of the turns.

    The next turn does not wait for the hook, because the hook may ask for a turn and wait for it (C-1234). What the hook raises stops
    nothing. Each turn is told at most once. What must happen after a turn belongs in a run or in a message.
    """

    def __init__(self, state: ConversationState) -> None:
        self._state, self._agent, self._tenant = state, state.agent, state.tenant
        self._untold: deque[tuple[str, dict[str, object]]] = deque()
        self._is_telling = False

    def ended(self, turn: Turn, message: Message | None) -> None:
        # A turn that never began and did not fail is not told.
        was_played = turn.started_at_ms or turn.status is TurnStatus.ERROR
        if not self._tenant.overrides("on_chat_response") or not was_played:
            return
        told: dict[str, object] = {
            "request_id": turn.request_id,
            "status": str(turn.status),
            "message": message,
            "error": turn.error,
            "continuation": bool(turn.continues),
        }
        self._untold.append((f"after/{self._state.origin_of(turn)}", told))
        if not self._is_telling:
            self._is_telling = True
            self._tenant.spawn(self._tell())

    async def _tell(self) -> None:
        while self._untold:
            origin, told = self._untold.popleft()
            ACTIVITY.set(Activity(origin))
            _, problem = await tried(self._tenant.call_in_turn(self._agent.on_chat_response, told))
            if problem is not None:
                self._tenant.trouble("on_chat_response", problem)
        self._is_telling = False


# ---------------------------------------------------------------- recovery


DECLINED = "The turn was interrupted, because {}, and going on with it was declined."
SWITCHED_OFF = (
    "The turn was interrupted, because {}, and this agent recovers none (chat_recovery = False). "
    "Ask again to have it answered."
)
STALL, PROCESS_LOST, OUT_OF_MEMORY = "stall", "process_lost", "out_of_memory"
PROCESS_ENDED, NO_MEMORY = "its process ended", "it ran out of memory"


class TurnRecovery:
    """Begins and recovers the turns of one agent."""

    def __init__(self, state: ConversationState, history: History, compaction: Compaction) -> None:
        self._state, self._history = state, history
        self.compaction = compaction

    # a request failed

    async def failed(self, live: LiveTurn, failure: Failure) -> TurnOutcome | None:
        """Recover from a failed request: None if the turn goes on."""
        turn, stream = live.turn, live.stream
        action = decide(_facts(live), failure, TurnBudget(turn.failures, turn.failures_total))
        in_a_row = action.budget.consecutive
        turn.failures, turn.failures_total = in_a_row, action.budget.total
        if action.drains:
            await live.drain()  # a call that gets its result meanwhile begins the row anew
        if failure.kind is FailureKind.CONTEXT_OVERFLOW and await self.compaction.after_refusal(live):
            return None
        live.stream.mend(replay=action.withdraws)
        if action.mode in (Mode.STOP, Mode.EXHAUSTED):
            live.give_up(f"the turn failed ({failure.text})")
            calls = _calls(live, stream.parts)
            if action.mode is Mode.STOP:
                return TurnOutcome(TurnEvent.FAILED, error_text(failure, calls), str(failure.kind), stage="stream")
            notice = notice_of(failure, calls)
            return TurnOutcome(TurnEvent.FAILED, notice.text, "recovery_exhausted", notice.data, "stream")
        delay_ms = next_delay_ms(max(1, in_a_row), failure, self._state.tenant.dice.roll())
        told = {"recovery": in_a_row, "mode": str(action.mode), "waitsMs": round(delay_ms), "why": failure.text}
        stream.add({"type": "data-status", "transient": True, "data": told})
        stream.flush()
        self._state.emit("chat:transport:recovery", turn, {**told, "phase": str(action.phase)})
        await asyncio.sleep(delay_ms / 1000)
        return None

    # the stream stalled, or the process died

    async def stalled(self, live: LiveTurn, problem: Stalled) -> TurnOutcome | None:
        # A tool that is at work goes on, whatever becomes of the turn.
        self._state.emit("chat:stream:stalled", live.turn, {"timeoutMs": problem.waited_ms})
        await live.drain(ChatRecovery.of(self._state.agent.chat_recovery).stable_timeout_ms)
        because = stalled(problem.waited_ms, has_progress=problem.has_begun, is_alive=problem.is_alive).text
        outcome = await self._interrupted(live, STALL, because)
        if outcome is not None:
            await live.drain()
        return outcome

    async def begin(self, live: LiveTurn) -> TurnOutcome | None:
        # A turn that an earlier life began is recovered. Returns an outcome if there is nothing to play.
        turn = live.turn
        if turn.cancelled is not None:
            return await abort(live)
        if turn.status is TurnStatus.ACCEPTED:
            return await self._first(live)
        if turn.request_id in self._state.ours:
            return None
        self._state.spans.lost_request(turn)
        return await self._interrupted(live, PROCESS_LOST, PROCESS_ENDED)

    async def _first(self, live: LiveTurn) -> TurnOutcome | None:
        turn, state = live.turn, self._state
        if turn.trigger == "regenerate" and "instead_of" not in turn.options:
            leaf = state.transcript.leaf
            turn.options["instead_of"] = leaf["id"] if leaf is not None and leaf["role"] == "assistant" else ""
        if turn.options.get("instead_of", None) is not None and turn.options["instead_of"] not in state.transcript:
            named, gone = turn.options["instead_of"], "The message to be replaced is not there any more."
            words = gone if named else "There is no answer to give again."
            return TurnOutcome(TurnEvent.SKIPPED, words, "no_answer")
        if turn.trigger == "continue":
            leaf = state.transcript.leaf
            if leaf is None or leaf["role"] != "assistant":
                return TurnOutcome(TurnEvent.SKIPPED, "There is no answer to continue.", "no_answer")
            if any(other.message_id == leaf["id"] for other in state.open.values()):
                words = "The newest answer waits for a person, and goes on by itself."
                return TurnOutcome(TurnEvent.SKIPPED, words, "awaiting_client")
            parts = self._history.continued(leaf, live)
            turn.message_id = turn.continues = leaf["id"]
            turn.base = len(parts)
            live.stream.begin_with(parts)
        late = await late_results(state.transcript, state.lost_calls, state.tenant.dispatch.inspect)
        self.open(turn, live.stream, late)
        return None

    def open(self, turn: Turn, stream: Stream, late: list[Message]) -> None:
        # One commit begins the turn and adds its messages to the transcript.
        self._state.replace_now(stream)
        self._state.add_now(stream, [*late, *turn.messages])
        turn.apply(TurnEvent.BEGUN)
        turn.attempt, turn.was_entered, turn.messages = 1, True, []
        turn.started_at_ms = turn.attempt_at_ms = turn.progress_at_ms = self._state.tenant.now_ms()
        turn.user_message_id = self._state.transcript.newest_user_id
        self._state.ours.add(turn.request_id)
        stream.add({"type": "start", "messageId": turn.message_id})
        if "answer" in turn.options:
            stream.add(turn.options["answer"])
        if not turn.run_id:  # the turn of a run is durable by the ledger's record of the run
            stream.flush()
        self._state.emit("chat:turn:start", turn, {"trigger": turn.trigger, "continuation": bool(turn.continues)})

    async def _interrupted(self, live: LiveTurn, cause: str, because: str) -> TurnOutcome | None:
        turn, stream = live.turn, live.stream
        kind = classify_turn(
            has_content=bool(stream.said),
            is_continuation=bool(turn.continues),
            is_newest_user_its_own=self._state.transcript.newest_user_id == turn.user_message_id,
            is_awaiting_client=live.awaits_person(),
        )
        if kind is RecoveryKind.SUPERSEDED:
            live.stream.mend()
            return TurnOutcome(
                TurnEvent.SKIPPED, "The conversation has gone on without this turn.", "conversation_changed"
            )
        config = ChatRecovery.of(self._state.agent.chat_recovery)
        if not config.is_on:
            self._interrupt(live, None, cause, "exhausted")
            live.stream.mend()
            return TurnOutcome(TurnEvent.FAILED, SWITCHED_OFF.format(because), "recovery_off", stage="recovery")
        seen = await self._evaluated(live, kind, cause, config)
        turn.incident = seen.incident.as_row()
        self._tell(turn, seen, cause)
        if seen.is_exhausted:
            return await self._exhausted(live, seen.incident, config, cause, because)
        declined = await self._asked(live, seen.incident, cause, because)
        turn.apply(TurnEvent.CUT_OFF)
        begun_ms, turn.attempt_at_ms = turn.attempt_at_ms, self._state.tenant.now_ms()
        turn.attempt, turn.was_entered = turn.attempt + 1, False
        self._state.ours.add(turn.request_id)
        if declined is None:
            stream.flush()  # the attempt counts, however it ends
        self._state.spans.broke_off(turn, begun_ms, cause)
        if declined is not None:
            return declined
        passed_ms = turn.attempt_at_ms - begun_ms if cause == PROCESS_LOST else 0
        await asyncio.sleep(recovery_pause_ms(seen.incident, self._state.tenant.dice.roll(), passed_ms) / 1000)
        turn.was_entered, turn.attempt_at_ms = True, self._state.tenant.now_ms()
        told = {"attempt": turn.attempt, "cause": cause, "kind": kind}
        stream.add({"type": "data-attempt", "transient": True, "data": told})
        live.stream.mend()
        stream.flush()
        return None

    async def _evaluated(self, live: LiveTurn, kind: RecoveryKind, cause: str, config: ChatRecovery) -> Evaluation:
        turn = live.turn
        known = None if turn.incident is None else Incident.of_row(turn.incident)
        if known is not None:
            # What runs have reported is counted once for each look (C-0571).
            signals = [told.get("signal_at_ms") or 0 for told in await live.runs()]
            if max(signals, default=0) > turn.progress_at_ms:
                turn.progress_at_ms = max(signals)
                turn.work += 1
        request_id, is_parked = turn.request_id, kind is RecoveryKind.PARK
        cut = TurnInterruption(
            request_id, request_id, turn.user_message_id or None, kind, turn.work, is_parked,
            is_out_of_memory=cause == OUT_OF_MEMORY, waited_until_ms=self._state.freed_at_ms, is_stall=cause == STALL,
            settled=live.stream.settled, was_entered=turn.was_entered, was_stopped=self._state.tenant.was_stopped and cause == PROCESS_LOST,
        )  # fmt: skip
        seen = evaluate(known, cut, config, self._state.tenant.now_ms())
        turn.incident = seen.incident.as_row()
        self._state.store.write(turn)  # before any hook is called, because a hook may kill the process
        if seen.asks_predicate and config.should_keep_recovering is not None:
            context = progress_context(seen.incident, self._state.tenant.now_ms())
            answer = await self._heard("should_keep_recovering", config.should_keep_recovering, context)
            seen = seen.declined() if answer is False else seen
        return seen

    def over(self, turn: Turn) -> list[tuple[str, dict[str, object]]]:
        # Closes the incident of a turn that has ended, in the same commit. Returns the events to emit after it.
        elapsed_ms = max(0, turn.ended_at_ms - (turn.started_at_ms or turn.accepted_at_ms))
        told = {"status": str(turn.status), "durationMs": elapsed_ms, "error": turn.error or None}
        finish: tuple[str, dict[str, object]] = ("chat:turn:finish", told)
        incident = None if turn.incident is None else Incident.of_row(turn.incident)
        if incident is None or incident.is_sealed:
            return [finish]
        if turn.status is TurnStatus.COMPLETED:
            turn.incident = None
            return [("chat:recovery:completed", _base(incident)), finish]
        status = IncidentStatus.SKIPPED if turn.status is TurnStatus.SKIPPED else IncidentStatus.FAILED
        turn.incident = incident.moved(status, turn.reason).as_row()
        return [(f"chat:recovery:{status}", {**_base(incident), "reason": turn.reason or None}), finish]

    def _tell(self, turn: Turn, seen: Evaluation, cause: str) -> None:
        incident = seen.incident
        base = {**_base(incident), "cause": cause}
        if seen.is_new:
            self._state.emit("chat:recovery:detected", turn, base)
        self._state.emit("chat:recovery:attempt", turn, base)
        last = "exhausted" if seen.is_exhausted else "scheduled"
        self._state.emit(f"chat:recovery:{last}", turn, {**base, "reason": incident.reason or None})

    async def _asked(self, live: LiveTurn, incident: Incident, cause: str, because: str) -> TurnOutcome | None:
        turn, stream = live.turn, live.stream
        parts = stream.said
        context = ChatRecoveryContext(
            incident_id=incident.incident_id,
            attempt=incident.attempt,
            max_attempts=incident.max_attempts,
            recovery_kind=str(incident.kind),
            stream_id=turn.request_id if parts else "",
            request_id=turn.request_id,
            recovery_root_request_id=incident.root_id,
            partial_text=text_in(parts),
            partial_parts=unpack(pack(parts)),
            recovery_data=turn.stashed,
            messages=unpack(pack(self._state.transcript.messages)),
            last_body=turn.metadata,
            last_client_tools=turn.options.get("client_tools"),
            created_at=turn.started_at_ms,
            cause=cause,
        )
        name, is_there = "on_chat_recovery", self._state.tenant.overrides("on_chat_recovery")
        answer = await self._heard(name, self._state.agent.on_chat_recovery, context) if is_there else None
        wishes = answer if isinstance(answer, dict) else {}
        goes_on = wishes.get("continue") is not False or isinstance(wishes.get("answer"), str)
        self._interrupt(live, incident, cause, "scheduled" if goes_on else "exhausted")
        # dropped, a call that may have begun would be made again under another id, and happen twice
        has_calls = any(is_tool_part(part) and part.get("state") != "input-streaming" for part in parts)
        if not keeps_partial(persist=wishes.get("persist"), has_settled_tools=has_calls):
            stream.withdraw()
        whole = wishes.get("answer")
        if whole is not None and not isinstance(whole, str):
            problem = TypeError(f"on_chat_recovery: answer: {whole!r:.200} is {type(whole).__name__}, not a text")
            self._state.tenant.trouble("on_chat_recovery", problem)
        elif whole is not None:
            stream.answer_with(whole)
            return None
        if goes_on:
            return None
        live.stream.mend()
        turn.incident = incident.moved(IncidentStatus.SKIPPED, "continue_disabled").as_row()
        self._state.emit("chat:recovery:skipped", turn, {"reason": "continue_disabled"})
        return TurnOutcome(TurnEvent.FAILED, DECLINED.format(because), "continue_disabled", stage="recovery")

    def _interrupt(self, live: LiveTurn, incident: Incident | None, cause: str, outcome: str) -> None:
        # `recovery` and `max_recoveries` are the `attempt` and `max_attempts` of the hooks.
        turn = live.turn
        told = {
            "attempt": turn.attempt,
            "cause": cause,
            "outcome": outcome,
            "incident_id": "" if incident is None else incident.incident_id,
            "recovery": 0 if incident is None else incident.attempt,
            "max_recoveries": 0 if incident is None else incident.max_attempts,
            "message_id": turn.message_id,
            "text": text_in(live.stream.own_parts),
        }
        live.stream.add({"type": "data-interrupted", "transient": True, "data": told})

    async def _exhausted(
        self, live: LiveTurn, incident: Incident, config: ChatRecovery, cause: str, because: str
    ) -> TurnOutcome:
        turn, parts = live.turn, live.stream.said
        stream_id, begun_ms = turn.request_id if parts else "", turn.started_at_ms
        context = exhausted_context(
            incident, config, because=because, stream_id=stream_id, created_at_ms=begun_ms, parts=parts
        )
        if config.on_exhausted is not None:
            await self._heard("on_exhausted", config.on_exhausted, context)
        self._interrupt(live, incident, cause, "exhausted")
        live.stream.mend()
        return TurnOutcome(TurnEvent.FAILED, context.terminal_message, incident.reason, stage="recovery")

    async def _heard(self, name: str, hook: Callable[..., object], context: object) -> object:
        answer, problem = await tried(self._state.tenant.call_hook(partial(hook, context)))
        if problem is not None:
            self._state.tenant.trouble(name, problem)
        return answer

    # the author's code

    async def raised(self, live: LiveTurn, problem: Exception) -> TurnOutcome | None:
        await live.drain()
        if isinstance(problem, MemoryError):
            return await self._interrupted(live, OUT_OF_MEMORY, NO_MEMORY)
        live.stream.mend()
        return TurnOutcome(TurnEvent.FAILED, in_words(problem), kind_of(raised_by(problem)))


async def abort(live: LiveTurn) -> TurnOutcome:
    await live.stop_calls(live.turn.cancelled or "")
    live.stream.mend()
    return TurnOutcome(TurnEvent.ABORTED, f"The turn was cancelled: {live.turn.cancelled}", "cancelled")


def _facts(live: LiveTurn) -> AttemptFacts:
    parts = live.stream.parts
    step = live.stream.last_step if live.stream.is_broken else []
    return AttemptFacts(
        has_text=any(part["type"] == "text" and part.get("text") for part in step),
        has_reasoning=any(part["type"] == "reasoning" for part in step),
        calls=tuple(_calls(live, step)),
        is_after_tools=any(is_tool_part(part) for part in parts[: len(parts) - len(step)]),
    )


def _calls(live: LiveTurn, parts: Iterable[Part]) -> Iterable[CallFacts]:
    for part in parts:
        if is_tool_part(part):
            tool, hosted = live.tools.get(tool_name(part)), bool(part.get("providerExecuted"))
            effect = "once" if tool is None else tool.effect
            yield CallFacts(part["toolCallId"], tool_name(part), live.stage(part), effect, hosted)


def _base(incident: Incident) -> dict[str, object]:
    return {
        "incidentId": incident.incident_id,
        "attempt": incident.attempt,
        "maxAttempts": incident.max_attempts,
        "recoveryKind": str(incident.kind),
    }
