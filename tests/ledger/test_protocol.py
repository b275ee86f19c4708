"""Requests and reports: what is decided, what is an echo, what is refused before anything happens."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.ledger import (
    AdmissionRefused,
    Alarm,
    Awake,
    Cancel,
    Chunk,
    Clear,
    ConflictingRequest,
    Ended,
    Fact,
    Handled,
    HostLost,
    HostUp,
    Milestone,
    Overloaded,
    Progress,
    Released,
    Request,
    Retry,
    RetryRefused,
    RunBeingCleared,
    Stimulus,
    Tell,
    UnknownRun,
    Unstarted,
    Up,
    checked_value,
    pack,
)
from perdure.ledger.facts import (
    AgentActivated,
    AgentLost,
    AgentReleased,
    AlarmSet,
    AttemptLost,
    AttemptStarted,
    ChunkEmitted,
    MailDelivered,
    MailFailed,
    MailPosted,
    MailRequeued,
    MailSuppressed,
    MilestoneReached,
    ProgressReported,
    RunAborted,
    RunCleared,
    RunErrored,
    RunInterrupted,
    RunReattached,
    RunRequested,
    RunStarted,
    RunSucceeded,
    TeardownBegan,
)
from perdure.policies import Limits
from tests.kit import NOW_MS, PARENT, TYPE, Ledger, asked, begun, child, placed

DONE = Ended("r", 1, b"\x2a", "said", None, released=False)
DETACHED: dict[str, Any] = {"detached": True, "on_finish": "on_done"}


def request(
    run_id: str = "r", *, life: int = 1, parent: str = PARENT, digest: str = "digest", **options: Any
) -> Request:
    return Request(run_id, TYPE, parent, "", digest, b"\x01", options, life, wait=not options.get("detached"))


def running(**options: Any) -> Ledger:
    return Ledger().given(asked(**options), placed(), begun())


# ---------------------------------------------------------------- requests


def test_a_request_opens_a_run_with_its_full_input() -> None:
    assert Ledger().when(request(limit=2)) == [
        RunRequested("r", TYPE, PARENT, "", "digest", b"\x01", {"limit": 2}, 1, 1)
    ]


def test_who_has_changed_a_class_of_a_notebook_is_told_to_ask_under_another_run_id_or_to_name_the_class() -> None:
    ledger = Ledger().given(asked()._replace(agent_type="cell:1f:Reader"))
    with pytest.raises(
        ConflictingRequest, match=r"or something .* was changed since.*Use another run_id.*`class Reader"
    ) as refused:
        ledger.when(request()._replace(agent_type="cell:2e:Reader"))
    assert refused.value.field == "agent_type"
    with pytest.raises(ConflictingRequest, match=r"not cell:2e:Other\); nothing was started"):
        ledger.when(request()._replace(agent_type="cell:2e:Other"))


def test_a_large_input_stands_in_the_payload_table() -> None:
    (fact,) = Ledger(Limits(inline_bytes_max=2)).when(request()._replace(input=b"123"))
    assert isinstance(fact, RunRequested)
    assert fact.input is None


def test_the_same_request_again_changes_nothing() -> None:
    ledger = Ledger()
    ledger.when(request())
    assert ledger.when(request()) == []


@pytest.mark.shows(agent_tools="W-21")
@pytest.mark.parametrize(
    ("field", "other"),
    [
        ("agent_type", request()._replace(agent_type="tests.toys:Other")),
        ("input", request(digest="other")._replace(input=b"\x02")),
        ("parent", request(parent="q@tests.toys:Parent")),
        ("detached", request(**DETACHED)),
    ],
)
def test_a_run_id_with_other_content_is_a_conflict_that_names_the_field(field: str, other: Request) -> None:
    ledger = Ledger().given(asked())
    with pytest.raises(ConflictingRequest) as refused:
        ledger.when(other)
    assert refused.value.field == field
    assert ledger.view.seq == 1


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_a_later_life_of_the_parent_re_attaches(status: str) -> None:
    ledger = running()
    if status == "interrupted":
        ledger.given(RunInterrupted("r", "no-progress", True, "silence"))
    assert ledger.when(request(life=2)) == [RunReattached("r", 2, 1)]
    assert ledger.when(request(life=2)) == []


def test_a_detached_run_is_not_re_attached_because_nobody_waits_for_it() -> None:
    assert running(**DETACHED).when(request(life=2, **DETACHED)) == []


def test_who_asks_again_for_an_ended_run_only_gets_its_end() -> None:
    ledger = running()
    ledger.when(DONE)
    assert ledger.when(request(life=2)) == []
    assert ledger.run().status == "completed"


@pytest.mark.shows(agent_tools="117")
def test_over_the_limit_a_request_is_refused_only_if_it_asked_for_that_and_the_id_is_not_used_up() -> None:
    ledger = Ledger().given(asked("a", limit=1))
    with pytest.raises(AdmissionRefused) as refused:
        ledger.when(request("b", limit=1, on_limit="reject"))
    assert refused.value.field == "max_concurrent_agent_tools"
    assert "limit is 1" in refused.value.problem
    assert "b" not in ledger.view.runs
    assert len(ledger.when(request("b", limit=1))) == 1


@pytest.mark.shows(agent_tools="116")
def test_interrupted_runs_hold_no_place_of_the_limit() -> None:
    ledger = Ledger().given(asked("a", limit=1), RunInterrupted("a", "no-progress", True, ""))
    assert len(ledger.when(request("b", limit=1, on_limit="reject"))) == 1


def test_too_many_waiting_runs_are_refused_with_the_time_to_ask_again() -> None:
    ledger = Ledger(Limits(waiting_max=1)).given(asked("a"))
    with pytest.raises(Overloaded) as refused:
        ledger.when(request("b"))
    assert (refused.value.waiting, refused.value.limit, refused.value.retry_after_ms) == (1, 1, 1_000)


def test_an_id_that_is_being_cleared_is_refused_for_the_time_being_and_nothing_has_happened() -> None:
    ledger = Ledger().given(asked(), RunAborted("r", "cleared"), RunCleared("r"))
    facts = ledger.view.seq
    for again in (request("r"), request("r", digest="other")):
        with pytest.raises(RunBeingCleared) as refused:
            ledger.when(again)
        assert refused.value.run_id == "r"
    assert ledger.view.seq == facts


def test_the_start_hook_of_a_run_that_a_transaction_asked_for_is_told_by_mail() -> None:
    ledger = Ledger()
    ledger.when(request(**DETACHED, start_hook=True))
    assert ledger.mail_state("start") == "pending"


def test_a_tell_that_is_repeated_is_posted_once() -> None:
    ledger, said = Ledger(), Tell("m", PARENT, "", "hear", b"\xc0", None, 1)
    assert ledger.when(said) == [MailPosted("m", PARENT, "", "hear", b"\xc0")]
    assert ledger.when(said) == []


# ---------------------------------------------------------------- cancel, clear, requeue


def test_a_cancel_is_durable_before_any_child_exists_and_is_repeatable() -> None:
    ledger = Ledger().given(asked())
    assert ledger.when(Cancel("r", PARENT, "enough")) == [RunAborted("r", "enough")]
    assert ledger.when(Cancel("r", PARENT, "again")) == []
    assert "r" not in set(ledger.view.queues)


def test_a_cancel_of_an_ended_run_changes_nothing() -> None:
    ledger = running()
    ledger.when(DONE)
    assert ledger.when(Cancel("r", PARENT, "too late")) == []


@pytest.mark.parametrize("parent", [PARENT, "q@tests.toys:Parent"])
def test_a_cancel_of_an_unknown_or_a_foreign_run_is_refused(parent: str) -> None:
    ledger = Ledger().given(asked(parent="o@tests.toys:Parent"))
    foreign = rf"'r' is a run of o@tests.toys:Parent, not of {parent}, .* `runtime.cancel\('r'\)`"
    for run_id, words in (("r", foreign), ("nobody", "no run 'nobody' is known")):
        with pytest.raises(UnknownRun, match=words) as refused:
            ledger.when(Cancel(run_id, parent, ""))
        assert refused.value.field == "run_id"
    assert ledger.when(Cancel("r", None, "by an operator"))


@pytest.mark.shows(agent_tools="W-47")
def test_a_cancel_goes_down_to_awaited_children_and_leaves_detached_ones() -> None:
    ledger = running().given(
        asked("awaited", parent=child()),
        asked("detached", parent=child(), detached=True),
        asked("deep", parent=child("awaited")),
    )
    aborted = [fact.run_id for fact in ledger.when(Cancel("r", PARENT, "enough")) if isinstance(fact, RunAborted)]
    assert aborted == ["r", "awaited", "deep"]
    assert ledger.run("detached").is_live


def test_a_clear_cancels_first_suppresses_mail_and_takes_the_childrens_runs_along() -> None:
    ledger = running(**DETACHED).given(asked("below", parent=child(), detached=True, hook=True))
    assert ledger.when(Clear(["r", "nobody"])) == [
        RunAborted("r", "cleared"),
        MailSuppressed("r!finish"),
        RunCleared("r"),
        RunAborted("below", "cleared"),
        MailSuppressed("below!finish"),
        RunCleared("below"),
    ]
    assert ledger.when(Clear(["r"])) == []


def test_only_a_parked_mail_can_be_tried_again() -> None:
    ledger = running(**DETACHED)
    ledger.when(DONE)
    with pytest.raises(RetryRefused):
        ledger.when(Retry("r!finish"))
    ledger.given(MailFailed("r!finish", "it raised", None))
    assert ledger.when(Retry("r!finish")) == [MailRequeued("r!finish")]
    assert ledger.mail_state("finish") == "pending"


# ---------------------------------------------------------------- reports of children


def test_signals_of_the_current_life_are_facts() -> None:
    ledger = Ledger().given(asked(), placed())
    assert ledger.when(Up("r", 1)) == [RunStarted("r", 1)]
    assert ledger.when(Progress("r", 1, b"\x80")) == [ProgressReported("r", 1, b"\x80")]
    assert ledger.when(Milestone("r", 1, "m", 1, b"\x80")) == [MilestoneReached("r", 1, 0, "m", 1, b"\x80")]
    assert ledger.when(Chunk("r", 1, 0, b"\xc0")) == [ChunkEmitted("r", 1, 0, b"\xc0")]
    assert ledger.when(DONE) == [RunSucceeded("r", 1, b"\x2a", "said", released=False)]


STALE: list[Stimulus] = [
    Up("r", 1),
    Progress("r", 1, b"\x80"),
    Milestone("r", 1, "m", 1, b"\x80"),
    Chunk("r", 1, 0, b"\xc0"),
    DONE,
    Unstarted("r", 1, "start-failed", ""),
    Released(child(), 1),
    Handled(child(), 1, ["r!finish"], []),
]


@pytest.mark.parametrize("stimulus", STALE, ids=lambda each: type(each).__name__)
def test_a_report_of_an_earlier_life_changes_nothing(stimulus: Stimulus) -> None:
    ledger = running().given(AttemptLost("r", 1, "gone", 0), placed(attempt=2, incarnation=2, host="h2"))
    assert ledger.when(stimulus) == []


@pytest.mark.parametrize("stimulus", STALE, ids=lambda each: type(each).__name__)
def test_only_the_life_that_has_the_place_reports(stimulus: Stimulus) -> None:
    ledger = running().given(AlarmSet(child(), NOW_MS + 9_000), AttemptLost("r", 1, "gone", 0))
    assert ledger.view.agents[child()].incarnation == 1, "its alarm is remembered, though it has no host"
    assert ledger.when(stimulus) == []


@pytest.mark.parametrize("stimulus", STALE, ids=lambda each: type(each).__name__)
def test_a_report_about_nobody_changes_nothing(stimulus: Stimulus) -> None:
    assert Ledger().when(stimulus) == []


def test_a_milestone_of_an_earlier_attempt_is_not_a_second_one_and_the_next_of_its_name_is() -> None:
    ledger = running()
    ledger.when(Milestone("r", 1, "m", 1, b"\x80"))
    ledger.given(AttemptLost("r", 1, "gone", 0), placed(attempt=2, incarnation=2))
    assert ledger.when(Milestone("r", 2, "m", 1, b"\x80")) == []
    assert ledger.when(Milestone("r", 2, "m", 2, b"\x80")) == [MilestoneReached("r", 2, 1, "m", 2, b"\x80")]


def test_a_slot_is_used_once_for_ever_also_after_its_mail_was_delivered() -> None:
    ledger = running(**DETACHED, milestones={"names": ["m"]}).given(AgentActivated(PARENT, 9, "h2"))
    ledger.when(Milestone("r", 1, "m", 1, b"\x80"))
    ledger.when(Handled(PARENT, 9, ["r!milestone:m"], []))
    assert len(ledger.when(Milestone("r", 1, "m", 2, b"\x80"))) == 1
    assert ledger.mail_state("milestone:m") == "delivered"
    assert ledger.view.tally["enqueued"] == 1
    assert not ledger.view.mail


def test_a_doubled_chunk_is_an_echo_and_a_new_attempt_counts_anew() -> None:
    ledger = running()
    assert len(ledger.when(Chunk("r", 1, 0, b"\xc0"))) == 1
    assert ledger.when(Chunk("r", 1, 0, b"\xc0")) == []
    ledger.given(AttemptLost("r", 1, "gone", 0), placed(attempt=2, incarnation=2))
    assert len(ledger.when(Chunk("r", 2, 0, b"\xc0"))) == 1


def test_one_hard_end_is_accepted_and_a_second_one_only_frees_the_place() -> None:
    ledger = running()
    ledger.when(DONE)
    assert ledger.when(DONE) == []
    failed = Ended("r", 1, None, "", "late", released=True)
    assert ledger.when(failed) == [AgentReleased(child(), 1)]
    assert ledger.run().status == "completed"


def test_a_failure_keeps_its_words_and_ends_what_the_child_waited_for() -> None:
    ledger = running().given(asked("below", parent=child()))
    facts = ledger.when(Ended("r", 1, None, "", "ValueError: no", released=True))
    assert facts[0] == RunErrored("r", 1, "ValueError: no", released=True)
    assert [fact.run_id for fact in facts if isinstance(fact, RunAborted)] == ["below"]


COLLECTING = [AttemptLost("r", 1, "gone", 0), AttemptStarted("r", 2, 2, "h1", collect=True)]
TORN_DOWN = [TeardownBegan("r", "budget-exceeded")]


@pytest.mark.parametrize(
    ("before", "end", "kind"),
    [
        (COLLECTING, HostLost("h1", "killed"), RunErrored),
        (COLLECTING, Unstarted("r", 2, "collected-nothing", "lost"), RunErrored),
        (TORN_DOWN, HostLost("h1", "killed"), RunInterrupted),
        (TORN_DOWN, Released(child(), 1), RunInterrupted),
    ],
)
def test_a_run_that_is_given_up_or_has_failed_for_good_ends_what_its_child_waited_for(
    before: list[Fact], end: Stimulus, kind: type[Fact]
) -> None:
    ledger = running(attempts_max=1).given(asked("below", parent=child()), asked("free", parent=child(), detached=True))
    facts = ledger.given(*before).when(end)
    assert kind in map(type, facts)
    assert [fact.run_id for fact in facts if isinstance(fact, RunAborted)] == ["below"]


def test_a_result_that_only_has_to_be_handed_over_is_asked_for_again_when_the_whole_system_was_stopped() -> None:
    ledger = running(attempts_max=1).given(*COLLECTING)
    assert list(map(type, ledger.when(HostLost("h1", "on purpose", excused=True)))) == [AttemptLost]


def test_of_another_input_only_the_names_are_told_that_the_asker_has_said_too() -> None:
    kept = {"sku": "a", "note": "theirs", "code": "theirs"}
    ledger = Ledger().given(*Ledger().when(request(digest="one")._replace(input=pack(kept))))
    with pytest.raises(ConflictingRequest) as refused:
        ledger.when(request(digest="two")._replace(input=pack({"sku": "a", "note": "mine", "gift": True})))
    assert "(one, not two; other in 'note', 'gift')" in str(refused.value)
    assert "theirs" not in str(refused.value)
    for other in (b"\x01", pack(["a"])):
        with pytest.raises(ConflictingRequest, match=r"\(one, not two\)"):
            ledger.when(request(digest="two")._replace(input=other))


def asks(value: object, digest: str = "given", parent: str = "", seal: bytes = b"8 bytes.") -> Request:
    return request(parent=parent, digest=digest)._replace(input=checked_value(seal, pack(value)))


@pytest.mark.parametrize(
    ("asked_first", "asked_again"),
    [
        (asks({"sku": "a"}), asks({"sku": "a", "gift": False}, seal=b"changed.")),
        (asks({"of": {"sku": "a"}}), asks({"of": {"sku": "a", "gift": False}})),
        (asks([["a", 1], ["b", 2]]), asks([["a", 1, False], ["b", 2, False]])),
        (asks({"n": 10}, "with n"), asks({"n": 10}, "without n, which is at its default", seal=b"changed.")),
        (asks({"n": float("nan")}), asks({"n": float("nan"), "gift": False})),
        (asks({"sku": "a", "n": 10}, parent=PARENT), asks({"sku": "a", "n": 50}, parent=PARENT)),
        (asks("x" * 600 + "10"), asks("x" * 600 + "50")),
    ],
    ids=["field", "field-within", "named-tuple", "same-content", "nan", "played-again", "large"],
)
def test_a_request_stays_the_same_while_its_class_changes(asked_first: Request, asked_again: Request) -> None:
    ledger = Ledger()
    ledger.when(asked_first)
    assert ledger.when(asked_again) == []


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({"sku": "a", "n": 10}, {"sku": "a", "n": 50, "gift": False}),
        ({"n": 1}, {"n": True}),
        ({"n": 1}, {"n": "1"}),
        ({"of": {"n": 10}}, {"of": {"n": 50}}),
        ([["a", 10]], [["a", 50, False]]),
        ({"of": {"n": 10}}, {"of": []}),
    ],
)
def test_what_a_changed_default_would_make_of_a_clients_request_is_other_content(was: object, now: object) -> None:
    ledger = Ledger()
    ledger.when(asks(was))
    with pytest.raises(ConflictingRequest, match="given with other defaults") as refused:
        ledger.when(asks(now))
    assert refused.value.field == "input"


def test_a_large_output_stands_in_the_payload_table() -> None:
    ledger = Ledger(Limits(inline_bytes_max=2)).given(asked(), placed(), begun())
    (fact,) = ledger.when(DONE._replace(output=b"123"))
    assert fact == RunSucceeded("r", 1, None, "said", released=False, large=True)


@pytest.mark.parametrize(
    ("cause", "attempt", "kinds"),
    [
        ("unimportable", 1, [RunErrored]),
        ("not-runnable", 1, [RunErrored]),
        ("collected-nothing", 3, [RunErrored]),
        ("unimportable", 2, [AttemptLost, RunInterrupted]),
        ("not-runnable", 2, [AttemptLost, RunInterrupted]),
        ("start-failed", 1, [AttemptLost]),
    ],
)
def test_what_becomes_of_an_attempt_that_could_not_be_carried(cause: str, attempt: int, kinds: list[type]) -> None:
    ledger = Ledger().given(asked(), placed(attempt=attempt))
    facts = ledger.when(Unstarted("r", 1, cause, "why"))
    assert [type(fact) for fact in facts] == kinds
    if kinds[-1] is RunInterrupted:
        reason = {"unimportable": "inspect-failed", "not-runnable": "not-tailable"}[cause]
        assert facts[-1] == RunInterrupted("r", reason, None, "why")


# ---------------------------------------------------------------- reports of hosts


def test_a_lost_host_loses_every_tenant_and_each_run_gets_another_attempt() -> None:
    ledger = Ledger().given(asked("a"), placed("a"), asked("b"), placed("b", incarnation=2), begun("b"))
    facts = ledger.when(HostLost("h1", "killed"))
    assert [(type(fact), fact[0]) for fact in facts] == [(AttemptLost, "a"), (AttemptLost, "b")]
    assert "its host died (killed)" in ledger.run("a").cause
    assert "h1" not in ledger.view.hosts
    assert ledger.when(HostLost("h1", "killed")) == []


def test_the_pause_before_the_next_attempt_doubles_with_each_loss_in_a_row() -> None:
    ledger, pauses = Ledger().given(asked(attempts_max=9)), []
    for attempt in (1, 2, 3, 4):
        (lost,) = ledger.given(placed(attempt=attempt, incarnation=attempt)).when(Released(child(), attempt))
        assert isinstance(lost, AttemptLost)
        pauses.append(lost.retry_at_ms - ledger.now_ms)
    assert pauses == [0, 400, 800, 1_600]


def test_a_lost_agent_without_a_run_is_woken_again() -> None:
    ledger = Ledger().given(AgentActivated(PARENT, 4, "h1"))
    assert ledger.when(HostLost("h1", "killed")) == [AgentLost(PARENT, 4, ledger.now_ms, "its host died (killed)")]


def test_a_host_that_forgot_a_run_it_had_begun_loses_it_and_one_it_never_began_is_begun_again() -> None:
    ledger = Ledger().given(asked("a"), placed("a"), begun("a"), asked("b"), placed("b", incarnation=2))
    assert [fact[0] for fact in ledger.when(HostUp("h1", []))] == ["a"]
    assert ledger.run("b").is_placed


@pytest.mark.parametrize("said", [HostUp("h1", [(child(), 1)]), HostUp("h1", [], [1])])
def test_a_host_that_says_the_same_again_or_has_a_goodbye_on_its_way_loses_nothing(said: HostUp) -> None:
    assert running().when(said) == []


def test_an_agent_that_leaves_in_the_middle_of_its_run_has_lost_it() -> None:
    ledger = running()
    (fact,) = ledger.when(Released(child(), 1))
    assert isinstance(fact, AttemptLost)


def test_a_teardown_is_confirmed_by_the_agent_that_leaves() -> None:
    ledger = running().given(TeardownBegan("r", "budget-exceeded"))
    released, interrupted = ledger.when(Released(child(), 1))
    assert released == AgentReleased(child(), 1)
    assert isinstance(interrupted, RunInterrupted)
    assert (interrupted.reason, interrupted.child_still_running) == ("budget-exceeded", False)


def test_a_child_that_dies_while_it_is_torn_down_does_not_run_any_more() -> None:
    ledger = running().given(TeardownBegan("r", "no-progress"))
    lost, interrupted, woken = ledger.when(HostLost("h1", "killed"))
    assert isinstance(lost, AttemptLost)
    assert isinstance(interrupted, RunInterrupted)
    assert (interrupted.reason, interrupted.child_still_running) == ("no-progress", False)
    assert woken == AgentLost(child(), 1, ledger.now_ms, "its host died (killed)"), "it may have had other work"


def test_a_child_that_dies_in_its_last_attempt_is_woken_for_its_other_work_and_one_that_left_is_not() -> None:
    options = {"attempts_max": 1, "pool": [1.0, [], "", False]}
    for end, kinds in (
        (HostLost("h1", "killed"), [AttemptLost, RunErrored, AgentLost]),
        (Unstarted("r", 2, "start-failed", "on_start raised"), [AttemptLost, RunErrored]),
    ):
        ledger = Ledger().given(asked(**options), placed(), AttemptLost("r", 1, "gone", NOW_MS))
        facts = ledger.given(AttemptStarted("r", 2, 2, "h1", collect=True)).when(end)
        assert [type(fact) for fact in facts] == kinds
        life = ledger.view.agents.get(child())
        assert (life is not None and life.home) == (options["pool"] if AgentLost in kinds else False)


def test_the_home_of_a_child_that_never_came_up_is_that_of_its_run() -> None:
    home = [1.0, [], "", False]
    ledger = Ledger().given(asked(pool=home), placed())
    assert ledger.when(Alarm(child(), 1, NOW_MS, None)) == [AlarmSet(child(), NOW_MS, home)]


def test_a_result_that_comes_during_the_teardown_wins() -> None:
    ledger = running(**DETACHED).given(TeardownBegan("r", "budget-exceeded"))
    assert [type(fact) for fact in ledger.when(DONE)] == [RunSucceeded]
    assert ledger.mail_state("finish") == "pending"
    assert ledger.mail_state("give-up") is None


@pytest.mark.parametrize("failed", [[], [MailFailed("r!give-up", "it raised", None)]], ids=["pending", "parked"])
def test_a_true_end_supersedes_a_give_up_that_is_not_delivered_and_is_itself_delivered(failed: list[Fact]) -> None:
    ledger = running(**DETACHED).given(RunInterrupted("r", "no-progress", True, ""), *failed)
    assert [type(fact) for fact in ledger.when(DONE)] == [RunSucceeded]
    assert (ledger.mail_state("give-up"), ledger.mail_state("finish")) == ("superseded", "pending")
    assert list(ledger.view.mailbox[PARENT]) == ["r!finish"]
    assert ledger.view.tally["parked"] == 0
    ledger.given(AgentActivated(PARENT, 9, "h2")).when(Handled(PARENT, 9, ["r!finish"], []))
    assert not ledger.view.mail, "nobody will speak of the give-up again"


def test_awake_is_seen_and_is_no_fact() -> None:
    ledger = Ledger().given(AgentActivated(PARENT, 4, "h1"))
    assert ledger.when(Awake(PARENT, 3)) == []
    assert not ledger.view.agents[PARENT].confirmed
    assert ledger.when(Awake(PARENT, 4)) == []
    assert ledger.view.agents[PARENT].confirmed


# ---------------------------------------------------------------- handled mail


def awake_parent() -> Ledger:
    ledger = running(**DETACHED)
    ledger.when(DONE)
    return ledger.given(AgentActivated(PARENT, 9, "h2"))


def test_handled_mail_is_delivered_once() -> None:
    ledger = awake_parent()
    said = Handled(PARENT, 9, ["r!finish", "unknown!finish"], [])
    assert ledger.when(said) == [MailDelivered(PARENT, ["r!finish"])]
    assert ledger.when(said) == []
    assert ledger.view.tally["delivered"] == 1


def test_an_earlier_life_of_the_recipient_acknowledges_nothing_and_its_failures_do_not_count() -> None:
    ledger = awake_parent()
    assert ledger.when(Handled(PARENT, 8, ["r!finish"], [])) == []
    assert ledger.when(Handled(PARENT, 8, [], [("r!finish", "it raised", True)])) == []
    assert ledger.mail_state("finish") == "pending"


def test_a_failing_handler_is_tried_again_with_a_doubling_pause_and_then_parked() -> None:
    ledger = awake_parent()
    pauses: list[int | None] = []
    for _ in range(8):
        (failed,) = ledger.when(Handled(PARENT, 9, [], [("r!finish", "it raised", False)]))
        assert isinstance(failed, MailFailed)
        pauses.append(None if failed.retry_at_ms is None else failed.retry_at_ms - ledger.now_ms)
    assert pauses == [200, 400, 800, 1_600, 3_200, 6_400, 12_800, None]
    assert ledger.mail_state("finish") == "parked"
    assert ledger.when(Handled(PARENT, 9, [], [("r!finish", "again", False)])) == []
    ledger.when(Retry("r!finish"))
    failed = MailFailed("r!finish", "it raised", ledger.now_ms + 200)
    assert ledger.when(Handled(PARENT, 9, [], [("r!finish", "it raised", False)])) == [failed], "all attempts again"


def test_a_handler_that_does_not_exist_parks_its_mail_at_once() -> None:
    (failed,) = awake_parent().when(Handled(PARENT, 9, [], [("r!finish", "no such method", True)]))
    assert failed == MailFailed("r!finish", "no such method", None)


def test_mail_of_another_agent_cannot_be_acknowledged() -> None:
    ledger = awake_parent().given(AgentActivated("q@tests.toys:Parent", 10, "h2"))
    assert ledger.when(Handled("q@tests.toys:Parent", 10, ["r!finish"], [])) == []
