"""A turn that was cut off is classified from what is durable, and recovered within bounds (spec chat-recovery §2.1, §4.3, §4.5)."""

from __future__ import annotations

import math
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import (
    INFINITY,
    ChatRecovery,
    Evaluation,
    Incident,
    IncidentStatus,
    RecoveryKind,
    TurnInterruption,
    classify_turn,
    evaluate,
    exhausted_context,
    keeps_partial,
    progress_context,
    recovery_pause_ms,
)

CONFIG = ChatRecovery()
SECOND, MINUTE = 1_000, 60_000


def cut(progress: int = 0, **more: Any) -> TurnInterruption:
    return TurnInterruption(
        **{"request_id": "req", "root_id": "root", "user_message_id": "u1", "kind": RecoveryKind.CONTINUE, **more},
        progress=progress,
    )


def story(*looks: tuple[float, TurnInterruption], config: ChatRecovery = CONFIG) -> Evaluation:
    """Look at one turn again and again, at these instants."""
    incident, last = None, None
    for at_ms, seen in looks:
        last = evaluate(incident, seen, config, at_ms)
        incident = last.incident
    assert last is not None
    return last


def test_a_process_that_was_ended_on_purpose_counts_as_no_failure_of_the_turn() -> None:
    stops = [(number * MINUTE / 2, cut(was_entered=True, was_stopped=True)) for number in range(9)]
    stopped = story(*stops, config=CONFIG).incident
    assert (stopped.attempt, stopped.losses) == (1, 1)
    died = story(*((at_ms, cut(was_entered=True)) for at_ms, _ in stops[:3])).incident
    assert (died.attempt, died.losses) == (3, 3)


# --- which kind --------------------------------------------------------------------------------------------------

KINDS = {
    1: (RecoveryKind.SUPERSEDED, lambda own, waits, content, goes_on: not own),
    2: (RecoveryKind.PARK, lambda own, waits, content, goes_on: own and waits),
    3: (RecoveryKind.CONTINUE, lambda own, waits, content, goes_on: own and not waits and content),
    4: (RecoveryKind.CONTINUE, lambda own, waits, content, goes_on: not (waits or content) and own and goes_on),
    5: (RecoveryKind.RETRY, lambda own, waits, content, goes_on: not (waits or content or goes_on) and own),
}


@pytest.mark.parametrize(
    "picture", list(product((False, True), repeat=4)), ids=lambda row: "".join("ny"[each] for each in row)
)
def test_each_picture_of_a_turn_has_one_row_of_the_table_and_its_kind(picture: tuple[bool, ...]) -> None:
    rows = [kind for kind, row in KINDS.values() if row(*picture)]
    assert len(rows) == 1
    own, waits, content, goes_on = picture
    kind = classify_turn(
        has_content=content,
        is_continuation=goes_on,
        is_newest_user_its_own=own,
        is_awaiting_client=waits,
    )
    assert kind is rows[0]


def kind_of(**facts: bool) -> RecoveryKind:
    plain = dict.fromkeys(["has_content", "is_continuation", "is_awaiting_client"], False)
    return classify_turn(**{"is_newest_user_its_own": True, **plain, **facts})


def test_w_01_and_w_02_a_turn_that_had_streamed_nothing_is_retried_whether_or_not_its_stream_had_begun() -> None:
    assert kind_of() is RecoveryKind.RETRY


def test_w_08_a_turn_is_not_recovered_when_people_have_gone_on() -> None:
    assert kind_of(is_newest_user_its_own=False, has_content=True) is RecoveryKind.SUPERSEDED


PARTIALS = {
    "c_0240 the hook says nothing": (None, False, True),
    "the hook says yes": (True, False, True),
    "c_0241 no, and nothing is settled": (False, False, False),
    "c_0242 no, but a tool has its result": (False, True, True),
}


@pytest.mark.shows(chat_recovery="C-0240 C-0241 C-0242")
@pytest.mark.parametrize(("persist", "settled", "expected"), PARTIALS.values(), ids=PARTIALS)
def test_a_partial_answer_is_dropped_only_if_nothing_in_it_is_settled(
    persist: bool | None, settled: bool, expected: bool
) -> None:
    assert keeps_partial(persist=persist, has_settled_tools=settled) is expected


# --- identity and configuration ----------------------------------------------------------------------------------


@pytest.mark.shows(chat_recovery="C-0249 C-0251")
def test_c_0249_and_c_0251_an_incident_is_known_by_its_root_and_the_users_message() -> None:
    assert evaluate(None, cut(), CONFIG, 0).incident.incident_id == "root:u1"
    assert evaluate(None, cut(user_message_id=None), CONFIG, 0).incident.incident_id == "root:"


@pytest.mark.shows(chat_recovery="C-0253 C-0255")
@pytest.mark.parametrize("value", [True, None, {}, ChatRecovery()])
def test_c_0253_and_c_0255_a_bare_yes_or_nothing_means_the_defaults(value: object) -> None:
    assert ChatRecovery.of(value) == ChatRecovery()


CLAMPS = [
    ("c_0256", {"max_attempts": 0}, 1),
    ("c_0256", {"max_attempts": 3.9}, 3),
    ("c_0256", {"stable_timeout_ms": -5}, 0),
    ("c_0256", {"stable_timeout_ms": 1234.9}, 1234),
    ("c_0256", {"no_progress_timeout_ms": -1}, 0),
    ("c_0256", {"max_attempts": math.nan}, 10),
    ("c_0257", {"max_recovery_work": 0}, 0),
    ("c_0257", {"max_recovery_work": -1}, 1000),
    ("c_0257", {"max_recovery_work": INFINITY}, INFINITY),
    ("c_0258", {"max_oom_retries": 0}, 0),
    ("c_0258", {"max_oom_retries": 5.9}, 5),
    ("c_0258", {"max_oom_retries": -1}, 3),
]


@pytest.mark.shows(chat_recovery="C-0256 C-0257 C-0258")
@pytest.mark.parametrize(
    ("case", "given_fields", "expected"), CLAMPS, ids=[f"{case} {fields}" for case, fields, _ in CLAMPS]
)
def test_numbers_out_of_range_are_brought_into_it(case: str, given_fields: dict[str, float], expected: float) -> None:
    (name,) = given_fields
    assert getattr(ChatRecovery.of(given_fields), name) == expected


@pytest.mark.shows(chat_recovery="C-0259")
def test_c_0259_hooks_are_passed_through() -> None:
    def hook(context: object) -> bool:
        return True

    config = ChatRecovery(should_keep_recovering=hook, on_exhausted=hook)
    assert (config.should_keep_recovering, config.on_exhausted) == (hook, hook)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ({"max_attempts": "3"}, "max_attempts"),
        ({"max_oom_retries": True}, "max_oom_retries"),
        ({"terminal_message": 3}, "terminal_message"),
        ({"on_exhausted": 3}, "on_exhausted"),
        ({"maxAttempts": 3}, "maxAttempts"),
        ("yes", "chat_recovery"),
    ],
)
def test_what_is_no_configuration_is_refused_by_the_name_of_its_field(value: object, named: str) -> None:
    with pytest.raises(TypeError, match=named):
        ChatRecovery.of(value)


# --- the bounds --------------------------------------------------------------------------------------------------


@pytest.mark.shows(chat_recovery="C-0276 C-0293")
def test_c_0276_and_c_0293_the_first_look_opens_an_incident() -> None:
    first = story((5_000, cut(7)))
    assert first.is_new
    assert not first.is_exhausted
    incident = first.incident
    assert (incident.attempt, incident.status, incident.work_baseline, incident.work) == (1, "attempting", 7, 0)
    assert (incident.incident_id, incident.first_seen_at_ms, incident.max_attempts) == ("root:u1", 5_000, 10)


@pytest.mark.shows(chat_recovery="C-0277 C-0278 C-0584 C-1082")
def test_c_0277_and_c_0278_a_change_of_kind_is_the_same_incident_and_shares_its_budget() -> None:
    again = story((0, cut()), (31 * SECOND, cut(kind=RecoveryKind.RETRY)))
    assert not again.is_new
    assert (again.incident.incident_id, again.incident.attempt, again.incident.kind) == (
        "root:u1",
        2,
        RecoveryKind.RETRY,
    )


@pytest.mark.shows(chat_recovery="C-0279 C-0280 C-1075")
def test_c_0279_and_c_0280_a_second_look_within_thirty_seconds_is_the_same_attempt() -> None:
    assert story((0, cut()), (29_999, cut())).incident.attempt == 1
    assert story((0, cut()), (30_000, cut())).incident.attempt == 2


@pytest.mark.shows(chat_recovery="C-0582")
def test_c_0582_the_looks_of_one_storm_are_one_attempt() -> None:
    looks = [(at * SECOND, cut()) for at in (0, 5, 12, 20)]
    assert story(*looks).incident.attempt == 1
    assert story(*looks, (60 * SECOND, cut())).incident.attempt == 2


def test_each_entry_of_a_turn_counts_however_soon_it_ended() -> None:
    attempts = [story(*[(at, cut(was_entered=True)) for at in range(n + 1)]).incident.attempt for n in range(4)]
    assert attempts == [1, 2, 3, 4]
    assert exhausted_by(*[(at, cut(was_entered=True)) for at in range(4)], max_attempts=3) == "max_attempts_exceeded"


def test_what_has_passed_since_an_attempt_began_is_part_of_the_pause_before_the_next() -> None:
    incident = story(*[(at, cut(was_entered=True)) for at in range(4)]).incident
    assert recovery_pause_ms(incident, 1.0) == 4_000
    assert recovery_pause_ms(incident, 1.0, 1_500) == 2_500
    assert recovery_pause_ms(incident, 1.0, 60_000) == 0


@pytest.mark.shows(chat_recovery="W-27")
def test_w_27_a_loop_that_is_faster_than_the_window_uses_up_its_attempts_all_the_same() -> None:
    config = ChatRecovery(max_attempts=3)
    looks = [(at * SECOND, cut()) for at in range(0, 91, 5)]
    last = story(*looks, config=config)
    assert (last.is_exhausted, last.incident.reason) == (True, "max_attempts_exceeded")


@pytest.mark.shows(chat_recovery="C-0281 C-1064")
def test_c_0281_progress_begins_the_count_of_attempts_anew() -> None:
    incident = story((0, cut(1)), (MINUTE, cut(1)), (2 * MINUTE, cut(5))).incident
    assert (incident.attempt, incident.progress, incident.last_progress_at_ms, incident.work) == (1, 5, 2 * MINUTE, 4)


@pytest.mark.shows(chat_recovery="C-0570")
def test_c_0570_attempts_count_one_two_and_after_progress_one_two_three() -> None:
    looks = [(0, cut(0)), (MINUTE, cut(0)), (2 * MINUTE, cut(1)), (3 * MINUTE, cut(1)), (4 * MINUTE, cut(1))]
    config = ChatRecovery(max_attempts=2)
    attempts = [story(*looks[: n + 1], config=config).incident.attempt for n in range(5)]
    assert attempts == [1, 2, 1, 2, 3]
    assert story(*looks, config=config).is_exhausted


def exhausted_by(*looks: tuple[float, TurnInterruption], **config: Any) -> str:
    last = story(*looks, config=ChatRecovery(**config))
    assert last.is_exhausted
    assert last.incident.status is IncidentStatus.EXHAUSTED
    return last.incident.reason


@pytest.mark.shows(chat_recovery="C-0282")
def test_c_0282_and_c_0564_one_attempt_too_many_is_sealed() -> None:
    assert exhausted_by((0, cut()), (40 * SECOND, cut()), max_attempts=1) == "max_attempts_exceeded"
    looks = [(n * 30 * SECOND, cut()) for n in range(11)]
    assert not story(*looks[:10], config=ChatRecovery(no_progress_timeout_ms=10**9)).is_exhausted
    assert exhausted_by(*looks, no_progress_timeout_ms=10**9) == "max_attempts_exceeded"


@pytest.mark.shows(chat_recovery="C-0283 C-0577 C-0578 C-1071 C-1072 C-1308")
def test_c_0283_and_c_0577_and_c_0578_silence_is_sealed_after_its_window() -> None:
    assert not story((0, cut()), (5 * MINUTE, cut())).is_exhausted
    assert exhausted_by((0, cut()), (5 * MINUTE + 1, cut())) == "no_progress_timeout"
    assert exhausted_by((0, cut()), (90 * SECOND, cut()), no_progress_timeout_ms=MINUTE) == "no_progress_timeout"


def test_w_26_the_time_in_which_another_turn_was_played_is_nobodys_silence() -> None:
    """A turn that waits for its place behind one that recovers, too, has all of its own time when it gets it."""
    behind = cut(waited_until_ms=6 * MINUTE)
    assert not story((0, cut()), (7 * MINUTE, behind)).is_exhausted
    assert exhausted_by((0, cut()), (7 * MINUTE, behind), (11 * MINUTE + 1, behind)) == "no_progress_timeout"
    assert not story((0, cut()), (MINUTE, cut(waited_until_ms=9 * MINUTE)), (6 * MINUTE, cut())).is_exhausted
    assert story((0, cut()), (MINUTE, cut(waited_until_ms=9 * MINUTE)), (6 * MINUTE + 1, cut())).is_exhausted


@pytest.mark.shows(chat_recovery="C-0284 C-0575 C-1069 C-1310")
def test_c_0284_and_c_0575_work_beyond_its_budget_is_sealed_though_it_was_progress() -> None:
    assert not story((0, cut(0)), (MINUTE, cut(2)), config=ChatRecovery(max_recovery_work=2)).is_exhausted
    assert exhausted_by((0, cut(0)), (MINUTE, cut(3)), max_recovery_work=2) == "work_budget_exceeded"


@pytest.mark.shows(chat_recovery="C-0285")
def test_c_0285_infinite_work_is_never_sealed() -> None:
    assert not story((0, cut(0)), (MINUTE, cut(10**9)), config=ChatRecovery(max_recovery_work=INFINITY)).is_exhausted


@pytest.mark.shows(chat_recovery="C-0294")
def test_c_0294_a_loop_that_makes_progress_before_each_death_is_sealed_by_its_work() -> None:
    looks = [(n * SECOND, cut(n * 7)) for n in range(145)]
    assert exhausted_by(*looks) == "work_budget_exceeded"


@pytest.mark.shows(chat_recovery="C-0574 C-1068")
def test_c_0574_a_slow_turn_that_makes_progress_is_not_sealed_for_its_age() -> None:
    looks = [(n * 4 * MINUTE, cut(n)) for n in range(20)]
    assert not story(*looks).is_exhausted


@pytest.mark.shows(chat_recovery="C-1076")
def test_c_0583_a_reconnect_without_new_chunks_is_no_progress() -> None:
    assert story((0, cut(3)), (MINUTE, cut(3))).incident.attempt == 2
    assert story((0, cut(3)), (MINUTE, cut(1))).incident.progress == 3


@pytest.mark.shows(chat_recovery="W-26")
def test_w_26_progress_before_the_turn_was_cut_off_is_no_work_of_its_recovery() -> None:
    assert story((0, cut(900)), (MINUTE, cut(1_100))).incident.work == 200


# --- memory ------------------------------------------------------------------------------------------------------


@pytest.mark.shows(chat_recovery="C-0209 C-0210 C-0295")
def test_c_0209_and_c_0210_and_c_0295_three_deaths_of_memory_are_recovered_and_the_fourth_is_not_whatever_the_progress() -> (
    None
):
    looks = [(n * MINUTE, cut(n, is_out_of_memory=True)) for n in range(4)]
    third = story(*looks[:3])
    assert (third.is_exhausted, third.incident.oom_attempts) == (False, 3)
    assert exhausted_by(*looks) == "out_of_memory"
    assert story(*looks).incident.oom_attempts == 4


@pytest.mark.shows(chat_recovery="C-0211")
def test_c_0211_with_no_retries_the_first_death_of_memory_is_sealed() -> None:
    assert exhausted_by((0, cut(is_out_of_memory=True)), max_oom_retries=0) == "out_of_memory"


def test_memory_is_the_first_reason_that_is_named() -> None:
    looks = [(n * 10 * MINUTE, cut(n * 1_000, is_out_of_memory=True)) for n in range(2)]
    assert exhausted_by(*looks, max_oom_retries=1, max_recovery_work=1) == "out_of_memory"


# --- the predicate -----------------------------------------------------------------------------------------------

ASKED = ChatRecovery(should_keep_recovering=lambda context: True)


@pytest.mark.shows(chat_recovery="C-0286 C-0289")
def test_c_0286_and_c_0289_the_predicate_is_asked_from_the_second_look_on() -> None:
    assert not story((0, cut()), config=ASKED).asks_predicate
    assert story((0, cut()), (MINUTE, cut()), config=ASKED).asks_predicate
    assert not story((0, cut()), (MINUTE, cut())).asks_predicate


@pytest.mark.shows(chat_recovery="C-0287 C-1070 C-1309")
def test_c_0287_its_no_seals_the_incident() -> None:
    sealed = story((0, cut()), (MINUTE, cut()), config=ASKED).declined()
    assert (sealed.is_exhausted, sealed.incident.reason) == (True, "recovery_aborted")


@pytest.mark.shows(chat_recovery="C-0290 C-0291")
@pytest.mark.parametrize(
    ("case", "looks"),
    [
        ("c_0290 silence", [(0, cut()), (6 * MINUTE, cut())]),
        ("c_0291 work", [(0, cut(0)), (MINUTE, cut(2_000))]),
        ("memory", [(n * MINUTE, cut(n, is_out_of_memory=True)) for n in range(4)]),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_the_predicate_is_not_asked_once_a_bound_is_crossed(
    case: str, looks: list[tuple[float, TurnInterruption]]
) -> None:
    last = story(*looks, config=ASKED)
    assert last.is_exhausted
    assert not last.asks_predicate


def test_what_the_predicate_is_told() -> None:
    context = progress_context(story((0, cut(2)), (MINUTE, cut(5))).incident, MINUTE + 500)
    assert (context.incident_id, context.recovery_root_request_id, context.attempt) == ("root:u1", "root", 1)
    assert (context.work, context.age_ms, context.recovery_kind, context.max_attempts) == (
        3,
        MINUTE + 500,
        "continue",
        10,
    )


# --- people ------------------------------------------------------------------------------------------------------


@pytest.mark.shows(chat_recovery="C-0292 C-0296 C-0579 C-1073")
def test_c_0292_and_c_0296_and_c_0579_a_turn_that_waits_for_a_person_is_never_sealed_and_costs_nothing() -> None:
    waits = cut(is_awaiting_client=True, is_out_of_memory=True)
    config = ChatRecovery(
        max_attempts=1, max_recovery_work=0, max_oom_retries=0, should_keep_recovering=lambda context: False
    )
    last = story((0, cut()), *[(n * 10 * MINUTE, waits) for n in range(1, 9)], config=config)
    assert (last.is_exhausted, last.asks_predicate, last.incident.attempt) == (False, False, 1)
    assert last.incident.last_progress_at_ms == 80 * MINUTE


def test_w_28_the_wait_for_a_person_may_have_a_deadline() -> None:
    waits = cut(is_awaiting_client=True)
    config = {"parked_deadline_ms": 60 * MINUTE}
    assert not story((0, waits), (60 * MINUTE, waits), config=ChatRecovery(**config)).is_exhausted
    assert exhausted_by((0, waits), (60 * MINUTE + 1, waits), **config) == "awaiting_client_deadline"
    answered = story((0, waits), (59 * MINUTE, cut()), (61 * MINUTE, waits), config=ChatRecovery(**config))
    assert not answered.is_exhausted


def test_an_answer_after_hours_is_not_taken_for_silence() -> None:
    assert not story((0, cut(is_awaiting_client=True)), (300 * MINUTE, cut())).is_exhausted


@pytest.mark.shows(chat_recovery="C-0581 C-1074")
def test_c_0581_a_call_of_the_server_parks_nothing() -> None:
    assert exhausted_by((0, cut()), (10 * MINUTE, cut(is_awaiting_client=False))) == "no_progress_timeout"


# --- sealed -----------------------------------------------------------------------------------------------------


@pytest.mark.shows(chat_recovery="C-0215 W-25")
@pytest.mark.parametrize("status", ["skipped", "failed", "exhausted"])
def test_w_25_a_sealed_incident_is_final_whatever_progress_is_made(status: str) -> None:
    sealed = story((0, cut())).incident.moved(IncidentStatus(status), "why")
    again = evaluate(sealed, cut(10**6), ASKED, 10**9)
    assert again == Evaluation(sealed, is_exhausted=True)
    assert sealed.moved(IncidentStatus.SCHEDULED) is sealed


def test_w_27_the_pause_before_a_recovery_doubles_with_the_losses_and_is_shaken_by_the_die() -> None:
    looks = [(n * SECOND, cut()) for n in range(9)]
    losses = [story(*looks[: n + 1]).incident for n in range(9)]
    assert [recovery_pause_ms(each, 0) for each in losses] == [
        0,
        500,
        1_000,
        2_000,
        4_000,
        8_000,
        15_000,
        15_000,
        15_000,
    ]
    assert recovery_pause_ms(losses[1], 0.5) == 750
    assert recovery_pause_ms(story(*looks, (MINUTE, cut(1))).incident, 0.9) == 0


# --- what hooks are told, and what is stored ---------------------------------------------------------------------

PARTS = [{"type": "text", "text": "Hel"}, {"type": "step-start"}, {"type": "text", "text": "lo"}]


@pytest.mark.shows(chat_recovery="C-0222 C-1138")
def test_c_0222_the_context_of_an_exhaustion_has_every_field() -> None:
    incident = story((0, cut())).incident.moved(IncidentStatus.EXHAUSTED, "no_progress_timeout")
    config = ChatRecovery(terminal_message="Sorry.")
    context = exhausted_context(incident, config, because="it broke", stream_id="s", created_at_ms=9, parts=PARTS)
    assert (context.incident_id, context.request_id, context.recovery_root_request_id) == ("root:u1", "req", "root")
    assert (context.attempt, context.max_attempts, context.recovery_kind) == (1, 10, "continue")
    assert (context.stream_id, context.created_at_ms, context.reason) == ("s", 9, "no_progress_timeout")
    assert (context.terminal_message, context.partial_text, context.partial_parts) == ("Sorry.", "Hello", PARTS)


@pytest.mark.shows(chat_recovery="C-0223 C-0224")
def test_c_0223_and_c_0224_without_a_root_or_a_reason_it_has_the_usual_ones() -> None:
    incident = story((0, cut(root_id=""))).incident
    context = exhausted_context(incident, CONFIG, because="it broke", stream_id="", created_at_ms=0, parts=[])
    assert (context.recovery_root_request_id, context.reason) == ("req", "max_attempts_exceeded")


LOST_TWICE = "2 attempts in a row broke off, the last one because its process ended"
WORDS = {
    "": f"{LOST_TWICE}; chat_recovery.max_attempts is 10.",
    "max_attempts_exceeded": f"{LOST_TWICE}; chat_recovery.max_attempts is 10.",
    "no_progress_timeout": f"{LOST_TWICE}; chat_recovery.no_progress_timeout_ms is 300000.",
    "work_budget_exceeded": f"{LOST_TWICE}; chat_recovery.max_recovery_work is 1000.",
    "too_many_stalls": f"{LOST_TWICE}; a turn may stall 20 times.",
    "out_of_memory": f"{LOST_TWICE}; chat_recovery.max_oom_retries is 3.",
    "recovery_aborted": f"{LOST_TWICE}; chat_recovery.should_keep_recovering said no.",
    "awaiting_client_deadline": "Nobody has answered in time; chat_recovery.parked_deadline_ms is 5000.",
}


@pytest.mark.parametrize("reason", WORDS)
def test_a_turn_that_gives_up_says_what_its_last_attempt_broke_off_of_and_which_bound_it_met(reason: str) -> None:
    seen = story(*((at_ms, cut(was_entered=True)) for at_ms in (0, MINUTE))).incident
    config = ChatRecovery(parked_deadline_ms=5_000)
    told = exhausted_context(
        seen.moved(IncidentStatus.EXHAUSTED, reason),
        config,
        because="its process ended",
        stream_id="",
        created_at_ms=0,
        parts=[],
    )
    assert told.terminal_message == f"{ChatRecovery().terminal_message} ({WORDS[reason]})"


def test_a_turn_that_gives_up_at_once_tells_of_one_attempt() -> None:
    seen = story((0, cut(is_out_of_memory=True)), config=ChatRecovery(max_oom_retries=0)).incident
    context = exhausted_context(seen, CONFIG, because="it broke", stream_id="", created_at_ms=0, parts=[])
    assert "(The attempt broke off because it broke; " in context.terminal_message


def test_an_incident_survives_being_stored_and_read_again() -> None:
    incident = story((0, cut(is_awaiting_client=True)), (MINUTE, cut(3))).incident.moved(IncidentStatus.SCHEDULED, "x")
    again = Incident.of_row(incident.as_row())
    assert again == incident
    assert isinstance(again.kind, RecoveryKind)
    assert isinstance(again.status, IncidentStatus)


@pytest.mark.shows(chat_recovery="C-0181")
def test_c_0181_a_reason_that_nobody_gives_any_more_is_still_read() -> None:
    row = story((0, cut())).incident.moved(IncidentStatus.EXHAUSTED, "max_recovery_window_exceeded").as_row()
    assert Incident.of_row(row).reason == "max_recovery_window_exceeded"


# --- properties --------------------------------------------------------------------------------------------------

LOOKS = st.lists(
    st.tuples(
        st.integers(0, 10 * MINUTE),
        st.builds(cut, st.integers(0, 50), is_awaiting_client=st.booleans(), is_out_of_memory=st.booleans()),
    ),
    min_size=1,
    max_size=15,
)
CONFIGS = st.builds(
    ChatRecovery,
    max_attempts=st.integers(1, 4),
    max_recovery_work=st.sampled_from([0, 3, 1_000, INFINITY]),
    max_oom_retries=st.integers(0, 3),
    no_progress_timeout_ms=st.sampled_from([0, MINUTE, 10**9]),
)


def replay(looks: list[tuple[int, TurnInterruption]], config: ChatRecovery) -> list[Evaluation]:
    incident, at_ms, evaluations = None, 0, []
    for after_ms, seen in looks:
        at_ms += after_ms
        evaluations.append(evaluate(incident, seen, config, at_ms))
        incident = evaluations[-1].incident
    return evaluations


@given(LOOKS, CONFIGS)
def test_whatever_is_seen_meters_never_fall_and_a_seal_is_never_broken(
    looks: list[tuple[int, TurnInterruption]], config: ChatRecovery
) -> None:
    evaluations = replay(looks, config)
    for before, after in pairwise(evaluations):
        assert after.incident.work >= before.incident.work
        assert after.incident.oom_attempts >= before.incident.oom_attempts
        assert after.incident.incident_id == before.incident.incident_id
        if before.is_exhausted:
            assert after.incident == before.incident
    for each in evaluations:
        assert each.is_exhausted is each.incident.is_sealed
        assert not (each.is_exhausted and each.asks_predicate)


@given(CONFIGS, st.integers(1, 5 * MINUTE))
def test_a_turn_that_never_makes_progress_is_given_up_in_bounded_looks(config: ChatRecovery, every_ms: int) -> None:
    looks = [(every_ms, cut())] * (2 + config.max_attempts * (2 + 30 * SECOND // every_ms))
    if len(looks) < 3_000:
        assert replay(looks, config)[-1].is_exhausted


@pytest.mark.shows(chat_recovery="C-0191")
@given(LOOKS, CONFIGS)
def test_c_0191_a_look_depends_on_nothing_but_what_it_is_given(
    looks: list[tuple[int, TurnInterruption]], config: ChatRecovery
) -> None:
    assert replay(looks, config) == replay(looks, config)
