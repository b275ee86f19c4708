"""Questions to people: what opens, answers and ends them, and what is remembered."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from ipaddress import IPv4Address
from typing import Any, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import UUID7, HttpUrl, IPvAnyNetwork, TypeAdapter

from perdure.ledger import (
    BATCH_MIN,
    AlreadyAnswered,
    AnswerAsk,
    AnswerForbidden,
    AnswerRefused,
    AskCalls,
    AskClosed,
    AskedCall,
    AskRecord,
    AskRefused,
    BadRequest,
    Cancel,
    Clear,
    Ended,
    Forget,
    Handled,
    OpenAsk,
    Released,
    Tick,
    UnknownAsk,
    WithdrawAsk,
    end_together,
    explain,
    list_asks,
    named_ask,
    pack,
    pack_value,
    restore,
    unpack,
)
from perdure.ledger.asks import ALARM_OF_ASKS
from perdure.ledger.facts import (
    AgentActivated,
    AskAnswered,
    AskEscalated,
    AskLapsed,
    AskOpened,
    AskWithdrawn,
    CallsAsked,
    MailDelivered,
    RunWaiting,
    UndoBegan,
    UndoPromised,
)
from perdure.ledger.mail import ANSWER, EVENT
from perdure.ledger.snapshot import dirty_records, meta_of
from perdure.ledger.store.store import Boot
from perdure.policies import Limits
from tests.kit import NOW_MS, PARENT, Ledger, asked, begun, child, placed

BOOL = pack({"type": "boolean"})
ANSWERED = f"{EVENT}{ANSWER}1:d"


def opening(number: int = 1, run_id: str = "r", incarnation: int = 1, **more: Any) -> OpenAsk:
    """A run asks something."""
    plain: dict[str, Any] = {
        "digest": "d", "question": "Ship?", "schema": BOOL, "args": None, "to": [], "people": 1, "self_answer": False, "expires_at_ms": 0,
        "otherwise": None,
    }  # fmt: skip
    return OpenAsk(run_id, incarnation, number, **plain | more)


def answer(value: object = True, who: str = "ada", number: int = 1, **more: Any) -> AnswerAsk:
    """Somebody answers."""
    plain: dict[str, Any] = {
        "digest": "", "groups": [], "is_operator": False, "is_admin": False, "channel": "cli", "edited": None,
        "answer_id": f"{who}{value}",
    }  # fmt: skip
    return AnswerAsk("r", number, who=who, value=pack(value), **plain | more)


def working(limits: Limits | None = None, **options: Any) -> Ledger:
    return Ledger(limits).given(asked("r", **options), placed("r"), begun("r"))


def kinds(facts: list[Any]) -> list[type]:
    return [type(fact) for fact in facts]


def status(ledger: Ledger, number: int = 1) -> str:
    ask = ledger.run().ask(number)
    return "" if ask is None else str(ask.status)


def told(ledger: Ledger) -> list[Any]:
    """What the run is told by the answers that wait for it."""
    return [unpack((ledger.view.mail[key].content or {})["body"]) for key in ledger.view.events.get("r", ())]


def test_a_question_is_opened_once_and_the_first_answer_reaches_the_run() -> None:
    ledger = working()
    assert kinds(ledger.when(opening())) == [AskOpened]
    assert ledger.when(opening()) == []
    assert (status(ledger), list(ledger.view.asks)) == ("open", ["r"])
    assert kinds(ledger.later(5).when(answer())) == [AskAnswered]
    assert (status(ledger), list(ledger.view.asks)) == ("answered", [])
    (said,) = told(ledger)
    assert said == {
        "value": pack(True), "args": None, "who": "ada", "channel": "cli", "at_ms": NOW_MS + 5, "edited": False, "people": ["ada"],
    }  # fmt: skip
    assert [mail.slot for mail in ledger.view.mail.values()] == [ANSWERED]


def test_a_later_answer_is_told_who_answered_by_what_and_when_and_the_same_answer_again_is_no_later_one() -> None:
    ledger = working()
    ledger.when(opening())
    ledger.when(answer(channel="dashboard"))
    with pytest.raises(AlreadyAnswered, match=r"answered by ada \(dashboard\), 3 min ago"):
        ledger.later(180_000).when(answer(False, "bob"))
    assert ledger.when(answer()) == []
    assert len(told(ledger)) == 1


def test_who_answers_while_the_run_has_not_read_an_earlier_answer_is_told_that_it_may_be_asked_again() -> None:
    ledger = working()
    ledger.when(opening())
    ledger.when(answer())
    with pytest.raises(AlreadyAnswered, match="has not read that yet, and asks again if it does not fit"):
        ledger.when(answer(False, "bob"))
    ledger.when(Handled(child(), 1, [*ledger.view.events["r"]], []))
    with pytest.raises(AlreadyAnswered, match=r"by ada \(cli\), 0 ms ago$"):
        ledger.when(answer(False, "bob"))


def test_a_waiting_run_is_queued_by_the_answer() -> None:
    ledger = working()
    ledger.when(opening())
    ledger.given(RunWaiting("r", 1, [f"{ANSWER}1:d"], float("inf"), False, float("inf"), True))
    assert "r" in ledger.view.waiting
    ledger.when(answer())
    assert "r" not in ledger.view.waiting
    assert "r" in ledger.view.queues


def test_a_run_that_says_something_else_at_the_same_place_asks_anew_and_what_was_answered_before_is_withdrawn() -> None:
    ledger = working()
    ledger.when(opening())
    ledger.when(answer())
    assert kinds(ledger.when(opening(digest="other"))) == [AskOpened]
    assert (status(ledger), told(ledger)) == ("open", [])
    assert ledger.run().slots == {}
    with pytest.raises(AnswerRefused, match="has changed since it was shown"):
        ledger.when(answer(False, "bob", digest="d"))
    assert kinds(ledger.when(answer(False, "bob", digest="other"))) == [AskAnswered]


def test_an_answer_that_the_run_has_taken_is_not_brought_again_and_one_that_it_could_not_use_is_asked_for_again() -> (
    None
):
    ledger = working()
    ledger.when(opening())
    ledger.when(answer())
    (mail_id,) = ledger.view.events["r"]
    assert ledger.when(opening()) == []
    assert kinds(ledger.when(opening(refuses=mail_id, note="it does not fit"))) == [AskOpened]
    assert (status(ledger), told(ledger)) == ("open", [])
    ledger.when(answer(False))
    (mail_id,) = ledger.view.events["r"]
    assert kinds(ledger.when(Handled(child(), 1, [mail_id], []))) == [MailDelivered]
    assert kinds(ledger.when(opening())) == [AskOpened]  # whoever asks again remembers no answer


def test_an_attempt_that_is_over_asks_nothing_and_withdraws_nothing() -> None:
    ledger = working()
    assert ledger.when(opening(incarnation=7)) == []
    ledger.when(opening())
    assert ledger.when(WithdrawAsk("r", 7, 1, "d")) == []
    assert ledger.when(WithdrawAsk("r", 1, 1, "other")) == []
    assert kinds(ledger.when(WithdrawAsk("r", 1, 1, "d"))) == [AskWithdrawn]
    assert ledger.when(WithdrawAsk("r", 1, 1, "d")) == []
    with pytest.raises(AskClosed, match="its run waits for the answer no more"):
        ledger.when(answer())
    assert kinds(ledger.when(opening())) == [AskOpened]


def test_questions_are_withdrawn_with_their_run() -> None:
    ledger = working()
    ledger.when(opening())
    ledger.when(opening(2))
    ledger.when(answer(number=2))
    ledger.when(Cancel("r", None, "enough"))
    assert [status(ledger, number) for number in (1, 2)] == ["withdrawn", "answered"]
    assert not ledger.view.asks
    assert not ledger.view.events
    with pytest.raises(AskClosed, match=r"its run has ended \(aborted\)"):
        ledger.when(answer())
    ledger.when(Clear(["r"]))
    with pytest.raises(UnknownAsk):
        ledger.when(answer())


@pytest.mark.parametrize(
    ("said", "error", "field"),
    [
        (answer(number=9), UnknownAsk, "ask_id"),
        (answer()._replace(run_id="nobody"), UnknownAsk, "ask_id"),
        (answer("maybe"), BadRequest, "value"),
        (answer(1), BadRequest, "value"),
        (answer(digest="shown before"), AnswerRefused, "digest"),
        (answer(edited=pack({"x": 1})), BadRequest, "args"),
    ],
)
def test_an_answer_that_does_not_fit_changes_nothing_and_names_the_field(
    said: AnswerAsk, error: type[BadRequest], field: str
) -> None:
    ledger = working()
    ledger.when(opening())
    with pytest.raises(error) as refused:
        ledger.when(said)
    assert refused.value.field == field
    assert (status(ledger), told(ledger)) == ("open", [])


def test_a_value_within_an_object_is_named_by_its_place() -> None:
    schema = {"type": "object", "properties": {"days": {"type": "array", "items": {"type": "integer"}}}}
    ledger = working()
    ledger.when(opening(schema=pack(schema)))
    with pytest.raises(BadRequest) as refused:
        ledger.when(answer({"days": [1, "x"]}))
    assert refused.value.field == "value.days.1"


@pytest.mark.parametrize(
    ("kind", "bad", "good"),
    [
        (date, "2025-13-45", "2025-12-24"),
        (time, "25:00", "23:59"),
        (datetime, "tomorrow", "2025-12-24T18:00:00Z"),
        (timedelta, "an hour", "PT1H"),
        (UUID, "zz", "5d6ecdac-0f37-4fef-a930-8431c251246a"),
        (UUID7, "5d6ecdac-0f37-4fef-a930-8431c251246a", "019ac7ab-6c3c-7d4c-9d5c-0f374fefa930"),
        (HttpUrl, "perdure", "https://example.com"),
        (IPv4Address, "10.0.0.256", "10.0.0.1"),
        (IPvAnyNetwork, "10.0.0.1/99", "10.0.0.0/8"),
        (re.Pattern, "(", "a+"),
        (ZoneInfo, "Europe/Berln", "Europe/Berlin"),
        (date | None, "2025-13-45", None),
        (date | Literal["never"], "2025-13-45", "never"),
    ],
)
def test_a_text_that_its_type_does_not_read_is_refused_where_it_is_given_and_a_later_one_counts(
    kind: Any, bad: object, good: object
) -> None:
    ledger = working()
    ledger.when(opening(schema=pack(TypeAdapter[Any](kind).json_schema())))
    with pytest.raises(BadRequest, match=r"^value: "):
        ledger.when(answer(bad))
    assert kinds(ledger.when(answer(good))) == [AskAnswered]
    assert [unpack(each["value"]) for each in told(ledger)] == [good]


def test_what_does_not_fit_is_said_in_the_words_of_its_type() -> None:
    ledger = working()
    ledger.when(opening(schema=pack(TypeAdapter(list[date]).json_schema())))
    with pytest.raises(BadRequest, match=r"^value\.1: '2025-13-45' is not a 'date': .* month value is outside"):
        ledger.when(answer(["2025-12-24", "2025-13-45"]))


def test_a_format_that_only_the_run_knows_is_left_to_it() -> None:
    ledger = working()
    ledger.when(opening(schema=pack({"type": "string", "format": "of-the-author"})))
    assert kinds(ledger.when(answer("anything"))) == [AskAnswered]


def test_edited_arguments_are_kept_beside_the_proposed_ones() -> None:
    ledger = working()
    ledger.when(opening(args=pack({"count": 40, "to": "all"})))
    for edited, field in (({"size": 1}, "args.size"), ([1], "args")):
        with pytest.raises(BadRequest) as refused:
            ledger.when(answer(edited=pack(edited)))
        assert refused.value.field == field
    ledger.when(answer(edited=pack({"count": 3})))
    (said,) = told(ledger)
    assert (unpack(said["args"]), said["edited"]) == ({"count": 3, "to": "all"}, True)
    (shown,) = list_asks(ledger.view, None, 10, NOW_MS, closed=True)
    assert (shown["args"]["count"], shown["answers"][0]["args"]["count"]) == (40, 3)


def test_arguments_that_are_edited_to_what_they_were_are_not_edited() -> None:
    ledger = working()
    ledger.when(opening(args=pack({"count": 40})))
    ledger.when(answer(edited=pack({"count": 40})))
    assert [(said["edited"], unpack(said["args"])) for said in told(ledger)] == [(False, {"count": 40})]


def test_only_those_who_are_asked_may_answer_and_it_comes_to_the_next_when_their_time_has_come() -> None:
    ledger = working()
    ledger.when(opening(to=[("ops", NOW_MS), ("managers", NOW_MS + 1_000)]))
    managers = answer(who="max", groups=["managers"])
    with pytest.raises(AnswerForbidden, match="ops may answer"):
        ledger.when(managers)
    assert [each["to"] for each in list_asks(ledger.view, "ops", 10, NOW_MS, closed=False)] == [["ops"]]
    assert list_asks(ledger.view, "managers", 10, NOW_MS, closed=False) == []
    assert ledger.later(999).when(Tick()) == []
    assert ledger.later(1).when(Tick()) == [AskEscalated("r", 1, 2)]
    assert [each["to"] for each in list_asks(ledger.view, "managers", 10, NOW_MS, closed=False)] == [
        ["ops", "managers"]
    ]
    assert kinds(ledger.when(managers)) == [AskAnswered]


def test_whoever_began_the_run_or_one_above_it_does_not_answer_for_it() -> None:
    ledger = Ledger().given(asked("top", parent="", began_by="ada"), placed("top"))
    below = ledger.run("top").child
    ledger.given(asked("r", parent=below), placed("r", incarnation=2), begun("r"))
    ledger.when(opening(incarnation=2))
    with pytest.raises(AnswerForbidden, match="ada began the run"):
        ledger.when(answer())
    assert kinds(ledger.when(answer(is_operator=True))) == [AskAnswered]


def test_two_people_have_to_agree() -> None:
    ledger = working()
    ledger.when(opening(people=2))
    (first,) = ledger.when(answer())
    assert isinstance(first, AskAnswered)
    assert (first.closes, status(ledger)) == (False, "open")
    with pytest.raises(AlreadyAnswered, match="2 different people"):
        ledger.when(answer(answer_id="again"))
    ledger.when(answer(who="bob"))
    assert (status(ledger), [said["people"] for said in told(ledger)]) == ("answered", [["ada", "bob"]])


def test_one_no_is_enough() -> None:
    ledger = working()
    ledger.when(opening(people=2))
    ledger.when(answer())
    ledger.when(answer(False, "bob"))
    assert [(unpack(said["value"]), said["people"]) for said in told(ledger)] == [(False, ["bob"])]


@pytest.mark.parametrize("otherwise", [None, pack(False)])
def test_what_nobody_answers_expires_by_the_wall_clock(otherwise: bytes | None) -> None:
    ledger = working()
    ledger.when(opening(expires_at_ms=NOW_MS + 60_000, otherwise=otherwise))
    assert ledger.later(59_000).when(Tick()) == []
    assert ledger.later(1_000).when(Tick(behind_ms=500)) == []
    assert ledger.later(500).when(Tick(behind_ms=500)) == [AskLapsed("r", 1)]
    (said,) = told(ledger)
    assert (said["value"], said["who"], said["people"]) == (otherwise, "", [])
    with pytest.raises(AskClosed, match="has expired"):
        ledger.when(answer())


def test_an_answer_that_comes_first_disarms_the_alarm() -> None:
    ledger = working()
    ledger.when(opening(expires_at_ms=NOW_MS + 60_000))
    assert ALARM_OF_ASKS + "r" in ledger.view.alarms.armed
    ledger.when(answer())
    assert ALARM_OF_ASKS + "r" not in ledger.view.alarms.armed
    assert ledger.later(60_000).when(Tick()) == []
    assert len(told(ledger)) == 1


def test_a_run_has_so_many_open_questions_at_most_and_closed_ones_are_forgotten_in_time() -> None:
    ledger = working(replace(Limits(), asks_max=2))
    for number in (1, 2):
        ledger.when(opening(number))
    with pytest.raises(AskRefused, match="asks_max is 2"):
        ledger.when(opening(3))
    for number in range(3, 400):
        ledger.when(answer(number=number - 2))
        (mail_id,) = ledger.view.events["r"]
        ledger.when(Handled(child(), 1, [mail_id], []))
        ledger.when(opening(number))
    assert len(ledger.run().asks) == 102
    with pytest.raises(UnknownAsk):
        ledger.when(answer(number=1))


def test_an_answer_that_was_not_taken_keeps_its_question() -> None:
    ledger = working()
    for number in range(1, 150):
        ledger.when(opening(number))
        ledger.when(answer(number=number))
    assert status(ledger) == "answered"
    assert ledger.when(opening(1)) == []


def test_runs_that_end_together_leave_no_question_open() -> None:
    ledger, names = Ledger(), [f"r{n}" for n in range(2 * BATCH_MIN)]
    for life, run_id in enumerate(names, 1):
        ledger.given(asked(run_id), placed(run_id, incarnation=life), begun(run_id))
        ledger.when(opening(1, run_id, life))
    ends = [Ended(run_id, life, b"\x01", "", None, True) for life, run_id in enumerate(names, 1)]
    ledger.enact(end_together(ledger.view, ends, ledger.limits))
    assert {str(ledger.run(run_id).status) for run_id in names} == {"completed"}
    assert not ledger.view.asks
    assert not any(ledger.run(run_id).open_asks for run_id in names)


def test_an_interrupted_run_keeps_its_questions_in_memory() -> None:
    ledger = working()
    ledger.when(opening())
    run = ledger.run()
    run.host_id, run.status = "", type(run.status)("interrupted")
    assert not run.is_settled
    run.asks = [ask.closed(type(ask.status)("withdrawn"), 1) for ask in run.asks]
    assert run.is_settled


@pytest.mark.parametrize("wrong", ["", "r", ":1", "r:", "r:x", "r:-1", "r:٣", "r:" + "9" * 40, 5, None])
def test_what_is_no_id_of_a_question_is_refused(wrong: Any) -> None:
    with pytest.raises(UnknownAsk, match="is no id of a question"):
        named_ask(wrong)
    assert named_ask("a:b:12") == ("a:b", 12)


def test_it_is_explained_what_is_asked_of_whom_and_until_when() -> None:
    ledger = working()
    steps = [("ops", NOW_MS), ("managers", NOW_MS + 60_000)]
    ledger.when(opening(to=steps, people=2, expires_at_ms=NOW_MS + 3_600_000))
    ledger.when(answer(who="bob", is_operator=True))
    said = "\n".join(explain(ledger.view, ledger.run(), ledger.now_ms, ledger.limits))
    assert "It asks ops, since 0 ms: Ship? (r:1). 1 answer of 2 came." in said
    assert "it comes to managers too in 60 s" in said
    assert "it expires in 1 h" in said
    assert "`perdure answer r:1 VALUE` answers it." in said


def test_why_a_question_is_open_again_is_explained() -> None:
    ledger = working()
    ledger.when(opening())
    ledger.when(answer())
    (mail_id,) = ledger.view.events["r"]
    ledger.when(opening(refuses=mail_id, note="ada answered True, which does not fit: too easy"))
    said = explain(ledger.view, ledger.run(), ledger.now_ms, ledger.limits)
    assert "It asks that again: ada answered True, which does not fit: too easy." in said


def test_a_run_that_is_being_undone_asks_nothing_any_more() -> None:
    ledger = working()
    ledger.when(opening(expires_at_ms=NOW_MS + 60_000))
    ledger.given(UndoPromised("r", 1), UndoBegan("r", 1, "error", "as was said"))
    assert (status(ledger), list(ledger.view.asks)) == ("withdrawn", [])
    assert ALARM_OF_ASKS + "r" not in ledger.view.alarms.armed
    with pytest.raises(AskClosed, match="waits for the answer no more"):
        ledger.when(answer())


# ---------------------------------------------------------------- calls of chats


HOME: list[object] = [2.0, [], "", False]


def chat() -> Ledger:
    """A chat that is awake, in its third life."""
    return Ledger().given(AgentActivated(PARENT, 3, "h1", HOME))


def said(*names: str, life: int = 3) -> AskCalls:
    """Its calls that wait."""
    return AskCalls(PARENT, life, {f"call-{name}": about(name) for name in names}, HOME)


def about(name: str) -> bytes:
    """A question about a call."""
    ask = AskRecord(
        0, "d", "May it?", pack_value("schema", {"type": "boolean"}), None, [], 0, 1, True, "", 0, None, "", 0, NOW_MS
    )
    return AskedCall(name, "approval", "risky", "", ask).body()


def test_the_calls_that_wait_are_kept_while_their_chat_sleeps_and_a_boot_knows_them() -> None:
    ledger = chat()
    assert ledger.when(said("a", life=2)) == [], "said by an earlier life"
    (fact,) = ledger.when(said("a", "b"))
    assert isinstance(fact, CallsAsked)
    assert ledger.when(said("b", "a")) == [], "said twice"
    ledger.when(Released(PARENT, 3))
    assert [each["ask_id"] for each in list_asks(ledger.view, None, 10, NOW_MS, closed=False)] == ["call-a", "call-b"]
    booted = restore(Boot(meta_of(ledger.view), dirty_records(ledger.view), [], []))
    assert booted.asked_calls == ledger.view.asked_calls
    ledger.given(AgentActivated(PARENT, 4, "h1", HOME))
    ledger.when(said("b", life=4))
    assert (list(ledger.view.asked_calls), ledger.view.closed_calls) == (["call-b"], {"call-a": PARENT})
    ledger.when(said(life=4))
    ledger.when(Released(PARENT, 4))
    assert PARENT not in ledger.view.agents, "nothing keeps it"


def test_an_agent_that_is_deleted_asks_nobody_anything_and_takes_no_answer() -> None:
    ledger = chat()
    ledger.when(said("a", "b"))
    ledger.when(said("b"))
    ledger.when(Forget(PARENT))
    assert not ledger.view.asked_calls
    assert not ledger.view.closed_calls
    assert ledger.when(said("b")) == []
