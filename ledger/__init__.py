"""What is true: facts, the table that moves them, decisions, mail, the stores, and the storages of agents.

The durable store (`ledger.store.duckdb_store`) and the agents' storages (`ledger.storage.agent_storages`) are imported by name, so that
reading the protocol loads no database. Each name loads its module when it is first used.
"""

from typing import TYPE_CHECKING

from perdure.lazy_names import lazy_names

if TYPE_CHECKING:
    from perdure.ledger.activation import Activation, HostView, PoolTrouble, blind, pool_key, with_package
    from perdure.ledger.addressing import Standalone, is_cleared, named_on_the_way, route
    from perdure.ledger.argument_checks import (
        check_bool,
        check_ms,
        check_number,
        check_text,
        check_whole,
        check_word,
        check_words,
        checked,
    )
    from perdure.ledger.asks import (
        APPROVAL,
        BEGAN_BY,
        CLIENT_TOOL,
        QUESTION_TYPE,
        YES_OR_NO,
        AskedCall,
        AskRow,
        ask_id,
        ask_told,
        asked_call,
        asks_below,
        call_ask_id,
        call_told,
        checked_answer,
        is_call_ask,
        list_asks,
        named_ask,
    )
    from perdure.ledger.batch_decisions import are_alike, end_together, is_plain_end, is_plain_request, request_together
    from perdure.ledger.bucket_cache import CACHE_VARIABLE, begin_cache, bucket_of, given_as
    from perdure.ledger.bucket_history import Moment
    from perdure.ledger.bucket_url import check_slashes, checked_url, is_url
    from perdure.ledger.chosen_runs import (
        GROUP_MAX,
        Deed,
        Steer,
        Verb,
        checked_wanted,
        chosen_of,
        near_types,
        page_of,
        rows_for,
        steer,
    )
    from perdure.ledger.code_files import CODE, PACKAGE, TYPES, put_code, type_lines
    from perdure.ledger.codec import decode, pack, unpack, unpack_opened
    from perdure.ledger.directory_format import (
        AGENTS,
        FORMAT,
        FORMAT_FILE,
        LEDGER,
        bring_up_to_date,
        check_format,
        keep_word,
        unreadable,
        word_of,
    )
    from perdure.ledger.effects import (
        DeliverEvents,
        DeliverMail,
        Effect,
        ForgetStorage,
        PauseAttempt,
        StartAttempt,
        StartBatch,
        StopAgent,
        TellEnd,
        WakeAgent,
        about,
        everything,
        keys_of,
        letter,
        outstanding,
    )
    from perdure.ledger.errors import (
        UNREACHABLE_RETRY_MS,
        UNREACHABLE_S,
        WAY_OUT,
        AdmissionRefused,
        AgentAborted,
        AgentBeingDeleted,
        AgentForbidden,
        AgentUnreachable,
        AlreadyAnswered,
        AnswerForbidden,
        AnswerRefused,
        AskClosed,
        AskExpired,
        AskRefused,
        AwaitedInsideHandler,
        BadRequest,
        BucketUnreachable,
        ConflictingRequest,
        DirectoryElsewhere,
        EventRefused,
        FiberStopped,
        HostUnavailable,
        LedgerDamaged,
        LedgerError,
        LedgerLost,
        LedgerTooNew,
        LedgerTooOld,
        LedgerUnwritable,
        MigrationFailed,
        NoLongerServed,
        NoSuchNode,
        OutcomeUnknown,
        Overloaded,
        PauseRefused,
        PerdureError,
        RetryRefused,
        RunBeingCleared,
        RuntimeClosed,
        ServedElsewhere,
        StaleIncarnation,
        StartTimedOut,
        StepError,
        StepFailed,
        StepOutcomeUnknown,
        StepTimedOut,
        StorageConflict,
        StorageError,
        StorageLost,
        StorageTooNew,
        SupervisorUnreachable,
        TooLarge,
        UnknownAgentType,
        UnknownAsk,
        UnknownRun,
        UnknownTool,
        VersionMismatch,
        WaitTimedOut,
        WorldError,
    )
    from perdure.ledger.explanation import explain
    from perdure.ledger.facts import (
        AgentForgotten,
        AttemptLost,
        AttemptStarted,
        Fact,
        MailFailed,
        MilestoneReached,
        RunCleared,
        RunErrored,
        RunInterrupted,
        RunParked,
        RunSucceeded,
        RunWaiting,
        SupervisorStarted,
        SupervisorStopped,
    )
    from perdure.ledger.folds import apply_fact, fold, record_fact
    from perdure.ledger.frames import frame_of
    from perdure.ledger.ids import (
        agent_id,
        check_id,
        derived_run_id,
        digest_of,
        is_within,
        name_of,
        origin_of,
        parent_of,
        path_of,
        request_of,
        sub_agent_id,
        type_of,
    )
    from perdure.ledger.indexes import ancestors
    from perdure.ledger.inspection import (
        about_agent,
        at_stake,
        audit,
        counts,
        ended_in,
        inspected,
        is_in_memory,
        line,
        listed,
        overview,
        parked,
        receipt,
    )
    from perdure.ledger.join_decisions import source_of
    from perdure.ledger.kept_back import all_waiting, hold_ups, live_run, unheeded
    from perdure.ledger.known_agent import KnownAgent, KnownAgents, standing_of
    from perdure.ledger.mail import ANSWER, EVENT, MILESTONE, Mail, MailState, Slot
    from perdure.ledger.maintenance.bucket_backups import pin_bucket, pins_of, unpin_bucket
    from perdure.ledger.maintenance.bucket_examination import examine_bucket
    from perdure.ledger.maintenance.bucket_restoration import (
        restore_directory_to_bucket,
        restore_to_bucket,
        restore_to_directory,
        why_no_ledger,
    )
    from perdure.ledger.maintenance.replicated_store import ReplicatedStore, open_replicated
    from perdure.ledger.old_code import code_standings, has_older_code, older_awake
    from perdure.ledger.placements import (
        Wants,
        assign_hosts,
        hindrance,
        hosts_wanted,
        is_at_fault,
        is_exclusive,
        wants_of,
    )
    from perdure.ledger.protocol import decide, is_awaited
    from perdure.ledger.replica_settings import (
        LAG_MAX_MS,
        LAG_MS,
        REPLICA,
        ReplicaSettings,
        checked_replica,
        keep_replica,
        replica_of,
    )
    from perdure.ledger.run import AskRecord, GivenAnswer, Run, outcome_of
    from perdure.ledger.secret import (
        RedactedStream,
        Secret,
        plain_without_secrets,
        provide_secrets,
        revealed,
        strike,
        without_secrets,
    )
    from perdure.ledger.snapshot import (
        activation_from,
        dirty_records,
        leave_out_passers,
        meta_of,
        prepare_rows,
        restore,
        rows_to_make,
        run_from,
        run_record,
    )
    from perdure.ledger.status import HARD, LAST_EVENTS, LIVE, AskStatus, Status, Undo
    from perdure.ledger.stimulus import (
        BY_OPERATOR,
        COLLECTED_NOTHING,
        NOT_RUNNABLE,
        START_FAILED,
        STORAGE_LOST,
        UNDO_FAILED,
        UNFIT,
        UNIMPORTABLE,
        Adopt,
        Alarm,
        AnswerAsk,
        AskCalls,
        Awake,
        Cancel,
        Chunk,
        Clear,
        Ended,
        ExpireRuns,
        Forget,
        Handled,
        HostLost,
        HostUp,
        Milestone,
        OpenAsk,
        Pause,
        Progress,
        PromiseUndo,
        Released,
        Request,
        Retry,
        Send,
        Stimulus,
        StopLives,
        Tell,
        Tick,
        Took,
        Undoing,
        Unhosted,
        Unstarted,
        Up,
        Waiting,
        WithdrawAsk,
    )
    from perdure.ledger.storage.carried_disk import CarriedDisk, FetchedStorage, own_folder
    from perdure.ledger.storage.patches import (
        MAIN,
        FilePatch,
        Patch,
        StorageImage,
        first_of_copy,
        image_after,
        is_of_copy,
        patch_of,
        whole,
    )
    from perdure.ledger.storage.signed_storage import INLINE_MAX, SignedBlock, SignedStorage, in_parts, signed_of
    from perdure.ledger.storage.this_machine import boot_id, mount_of
    from perdure.ledger.store.batches import BATCH_MIN, batch_of, count_of, expand_rows
    from perdure.ledger.store.bucket import Bucket
    from perdure.ledger.store.bucket_store import last_life_in, look_into, open_bucket
    from perdure.ledger.store.journal import commits_in
    from perdure.ledger.store.store import (
        BatchRow,
        Boot,
        CarryingStore,
        FactRow,
        First,
        Payload,
        Record,
        Row,
        Store,
        Wanted,
    )
    from perdure.ledger.succession import ATTEND_S, NOBODY, Claim, Holder, Traces, where_to_ask
    from perdure.ledger.timeouts import arm, next_look
    from perdure.ledger.values import (
        FINGERPRINT_BYTES,
        Kept,
        Unfit,
        checked_value,
        class_name,
        pack_value,
        packed_if_short,
        preview_of,
        said,
        shown,
        shown_input,
        taken_out,
        unchecked,
        unpack_value,
        way_to_plain,
    )
    from perdure.ledger.view import ALARM_OF_RUN, View, last_end
    from perdure.ledger.whole_files import add_line, keep_whole, lines_of, numbered_lines, write_at
    from perdure.ledger.wording import harmless, lasting, of_json

if __name__ != "perdure.ledger":  # imported from a checkout: every module would exist twice
    raise ImportError("this folder is a part of the package `perdure`: import `perdure.ledger`")

__getattr__, __dir__ = lazy_names(globals())
