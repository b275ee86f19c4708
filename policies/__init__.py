"""What we would do: pure functions and frozen configuration. No IO, no clock, no dice, and nothing of ours is imported.

| module | the question it answers |
|---|---|
| `json_types` | what is plain data? |
| `limits` | what is allowed, and what is the default? |
| `numbers` | is this a number, and in its range? |
| `retry` | how long until the next try? |
| `patience` | when does a parent stop waiting, and why? |
| `recovery` | what becomes of a run whose child is gone? |
| `joins` | when may a run begin that waits for others? |
| `failures` | what is a failed model request, as plain data? |
| `transport` | why did it fail, and could it succeed later? |
| `phases` | what is done after it, given how far it had come? |
| `cautions` | what is said about a call whose outcome is unknown? |
| `chat_config` | how is a chat agent configured, and how may an author write that? |
| `chat_recovery` | what becomes of a chat turn that was cut off, and what counts as its progress? |
| `compaction` | how much of a conversation is a model sent, once it has grown too long for it? |
| `repair` | how does a transcript become one that a model accepts? |
| `ui_messages` | what shape have messages, parts and events? |
| `repeats` | may a call start whose like was lost? |
| `asks` | who may answer a question of a run, and when is it answered? |
| `overlap` | what becomes of a message that comes during a turn? |
| `turn_status` | what does an event do to the status of a turn? |
| `retention` | which ended runs may be cleared by themselves? |
| `state_tables` | how is a machine written as a table? |
| `fiber_status` | what does an event do to a fiber? |
| `callback_status` | what does an event do to a schedule or a queued item? |
| `reply_status` | what does an event do to a messenger's reply? |
| `fiber_decisions` | what becomes of a durable job that was cut off? |
| `schedule` | when is a schedule due next, and what of the times that it missed? |
| `long_texts` | how does an answer become messages of a limited length? |
| `delivery` | what is shown at last, and what follows a post that went wrong? |
| `ledger_time` | how does the ledger's time follow the wall clock, and what is measured without it? |
| `liveness` | when does silence count against a host? |
| `nodes` | which node could give what a host asks for, which one takes the next host, and how is one left that drains? |
| `placement` | which host takes the next agent, and how many hosts are wanted? |
| `kill_targets` | which process is killed next, in a drill? |
| `ranked_queue` | whose turn is it on a host? |
| `agents_client` | what do the frames of Cloudflare's clients ask for, and what are they told? |
| `turn_pace` | how many messages does the supervisor decide at once, and how long does it wait for more of them? |
| `step_tries` | what happens next with a step that is tried, timed, or asked for? |
| `spans` | how is a span named, by whichever process tells it? |

Each name loads its module when it is first used.

A new policy is pure functions, whose arguments are time and dice, too, and whose outcomes are values; a question in the table above, and
its names below; its limits in `policies/limits.py`, with what each bounds; and tests in `tests/policies`: each case, and laws by
`hypothesis`.
"""

from typing import TYPE_CHECKING

from perdure.lazy_names import lazy_names

if TYPE_CHECKING:
    from perdure.policies.agents_client import (
        OUTCOMES,
        PROGRESS_EVERY_S,
        ProbeAnswer,
        Situation,
        TurnPlan,
        ask_events,
        asked_again,
        plan_request,
        probe_answer,
        run_events,
        shown_chunk,
    )
    from perdure.policies.asks import Answerer, Vote, answer_refusal, is_decided, with_vote
    from perdure.policies.callback_status import (
        CALLBACK_DUE,
        CALLBACK_TRANSITIONS,
        CallbackEvent,
        CallbackStatus,
        PastOutcome,
    )
    from perdure.policies.cautions import NoResult, caution, correction, error_text, notice_of
    from perdure.policies.chat_config import (
        ChatRecovery,
        ContextOverflow,
        ExhaustedContext,
        ProgressContext,
    )
    from perdure.policies.chat_recovery import (
        Evaluation,
        Incident,
        IncidentStatus,
        RecoveryKind,
        TurnInterruption,
        classify_turn,
        earns_credit,
        evaluate,
        exhausted_context,
        keeps_partial,
        progress_context,
        recovery_pause_ms,
    )
    from perdure.policies.compaction import (
        CLIPS,
        SUMMARY_HEAD,
        SUMMARY_INSTRUCTIONS,
        cut,
        estimated_tokens,
        question_starts,
        retold,
        step_starts,
        steps_of,
    )
    from perdure.policies.delivery import (
        Delivery,
        DeliveryOutcome,
        DeliveryTrouble,
        Next,
        after_failure,
        after_unknown,
        ending,
        pause_ms,
        ready_at_ms,
    )
    from perdure.policies.failures import Failure, FailureKind, Raised, one_line
    from perdure.policies.fiber_decisions import (
        UNSET,
        AskHook,
        Drop,
        Enter,
        FiberResult,
        FiberRetry,
        Interruption,
        Settle,
        SettledFiber,
        after_error,
        after_hook,
        excused,
        outlived,
        recovery_pause_after,
        take_up,
    )
    from perdure.policies.fiber_status import (
        FIBER_CLEANED,
        FIBER_ENTERED_NEXT,
        FIBER_OPEN_STATES,
        FIBER_SETTLED,
        FIBER_TRANSITIONS,
        FiberEvent,
        FiberState,
        FiberStatus,
    )
    from perdure.policies.joins import (
        DEPTH_MAX,
        LEAVES_MAX,
        Condition,
        EndOf,
        JoinStanding,
        JoinVerdict,
        MilestoneOf,
        Of,
        Source,
        condition_from,
        condition_in_words,
        depth_of,
        judge_condition,
        leaves_of,
        plain_condition,
        runs_of,
    )
    from perdure.policies.json_types import Json, JsonObject
    from perdure.policies.kill_targets import StrikeTarget, carriers, from_here, in_turns, victims
    from perdure.policies.ledger_time import LEAP_MS, Leap, LedgerTime, carried, with_leap
    from perdure.policies.limits import Limits
    from perdure.policies.liveness import COMING, MUTE, Silence, is_noteworthy, is_unbearable, silence_after, was_late
    from perdure.policies.long_texts import Counting, length_of, sendable, split, spoken
    from perdure.policies.nodes import (
        ACCELERATOR,
        CPU,
        GPU,
        MEMORY,
        NODE_ID,
        DrainStep,
        NodeDrain,
        NodeLoad,
        NodeOffer,
        amount_in_words,
        choose_node,
        drain_step,
        has_labels,
        is_label,
        is_label_expression,
        is_left,
        label_in_words,
        moves_at_ms,
        node_lack,
    )
    from perdure.policies.numbers import INFINITY, InvalidValue, is_number, number, whole
    from perdure.policies.overlap import (
        OpenTurn,
        Overlap,
        QueueAction,
        is_dropped,
        is_held,
        overlaps,
        queue_decision,
        steered_turn,
    )
    from perdure.policies.patience import Budget, Expiry, Sighting, expiry, is_window
    from perdure.policies.phases import AttemptFacts, CallFacts, CallStage, Mode, TurnBudget, decide
    from perdure.policies.placement import (
        blamed_from,
        choose,
        has_room_alone,
        is_behind,
        room_after,
        shares,
        spare_hosts,
        wanted_hosts,
    )
    from perdure.policies.ranked_queue import Rank, RankedQueue
    from perdure.policies.recovery import Attempts, Evidence, Fail, RetryAfter, Seal, judge
    from perdure.policies.repair import (
        default_repair,
        deferred_ids,
        is_settled,
        is_tool_part,
        object_input,
        open_calls,
        repair_transcript,
        tool_name,
        waiting_calls,
    )
    from perdure.policies.repeats import LossRow, RepeatGuard, stop_text
    from perdure.policies.reply_status import REPLY_OPEN, REPLY_TRANSITIONS, ReplyEvent, ReplyStatus
    from perdure.policies.retention import PASS, SLICE, Due, is_retention_on, retention_due, snapshot_age_max_ms
    from perdure.policies.retry import backoff_ms, jittered_ms
    from perdure.policies.schedule import (
        CatchUp,
        Cron,
        Every,
        Firing,
        Pattern,
        Retries,
        TickOverlap,
        cron,
        default_retries,
        duration_ms,
        firing,
        full_jitter_ms,
        instant_ms,
        interval_ms,
        moment_ms,
        next_tick,
        seconds,
    )
    from perdure.policies.spans import (
        CHAT,
        CONTENT_MAX,
        EXECUTE_TOOL,
        INVOKE_AGENT,
        OPERATION,
        OURS,
        PROVIDER,
        AttemptSpans,
        Attribute,
        EndedSpan,
        TraceContext,
        call_span,
        context_of,
        error_type,
        run_span,
        spoken_content,
        trace_of,
        within,
    )
    from perdure.policies.state_tables import Cell, IllegalTransition, Transitions
    from perdure.policies.step_tries import StepRecord, StepVerdict, look_at_step
    from perdure.policies.transport import classify, next_delay_ms, no_answer, stalled, stream_ended
    from perdure.policies.turn_pace import CommitPace, linger_ms, pace_after, turn_size_after
    from perdure.policies.turn_status import TURN_ENDED, TURN_TRANSITIONS, TurnEvent, TurnStatus
    from perdure.policies.ui_messages import (
        STEERED,
        Event,
        Message,
        OurMetadata,
        Part,
        ProviderMetadata,
        Role,
        ToolState,
        is_file,
        result_apart,
        says_nothing,
        steered_message,
        steered_part,
        told_of,
        without,
    )

if __name__ != "perdure.policies":  # imported from a checkout: every module would exist twice
    raise ImportError("this folder is a part of the package `perdure`: import `perdure.policies`")

__getattr__, __dir__ = lazy_names(globals())
