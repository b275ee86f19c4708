"""Which code runs and agents have when new code comes."""

from __future__ import annotations

from perdure.ledger import (
    Adopt,
    Cancel,
    HostView,
    Retry,
    RunErrored,
    Unstarted,
    assign_hosts,
    explain,
    hosts_wanted,
    restore,
    sub_agent_id,
    wants_of,
    with_package,
)
from perdure.ledger.activation import package_of
from perdure.ledger.codec import encode
from perdure.ledger.facts import (
    AgentActivated,
    AlarmSet,
    AttemptStarted,
    CodeAdopted,
    RunCleared,
    RunParked,
    RunRetried,
)
from perdure.ledger.ids import origin_of
from perdure.ledger.store.store import Boot, FactRow
from tests.kit import PARENT, TYPE, Ledger, asked, begun, child, placed

OLD, NEW = with_package(None, "old"), with_package(None, "new")
ORIGIN = "tests"


def with_new_code() -> Ledger:
    ledger = Ledger().given(asked(pool=OLD), placed(), begun())
    assert ledger.when(Adopt("new", {ORIGIN: ""})) == [CodeAdopted("new", {ORIGIN: ""})]
    return ledger


def test_a_package_stands_beside_what_a_class_asks_of_its_host_and_another_takes_its_place() -> None:
    spec = [1.0, [["GPU", 1.0]], '{"env_vars": {"A": "b"}}', True]
    packed = with_package(spec, "old")
    assert packed is not None
    assert (package_of(packed), package_of(spec), package_of(None)) == ("old", "", "")
    assert with_package(with_package(packed, "new"), "") == spec
    assert with_package(OLD, "") is None


def test_types_share_code_with_their_script_their_top_level_module_or_their_name() -> None:
    names = ["shop.tills:Till", "script:/a/shop.py:Till", "cell:1f:Till", "name:till"]
    assert [origin_of(name) for name in names] == ["shop", "script:/a/shop.py", "cell:1f", "name:till"]


def test_a_run_that_was_parked_and_cancelled_is_not_tried_again_when_code_comes() -> None:
    for further in ([], [RunCleared("r")]):
        ledger = Ledger().given(asked(pool=OLD), placed(), RunParked("r", 1, "its input does not fit"))
        ledger.when(Cancel("r", None, "enough"))
        assert ledger.run().status == "aborted"
        ledger.given(*further)
        assert not ledger.view.parked
        assert ledger.when(Adopt("new", {ORIGIN: ""})) == [CodeAdopted("new", {ORIGIN: ""})]


def test_the_same_code_again_is_no_news() -> None:
    assert with_new_code().when(Adopt("new", {ORIGIN: ""})) == []


def test_a_live_run_keeps_its_code_and_an_agent_with_a_name_takes_the_new_when_it_wakes() -> None:
    ledger = with_new_code().given(AgentActivated(PARENT, 9, "h2", OLD), AlarmSet(PARENT, 5, OLD))
    assert ledger.run().options["pool"] == OLD
    assert ledger.view.home_of(PARENT) == NEW
    said = " ".join(explain(ledger.view, ledger.run(), ledger.now_ms, ledger.limits))
    assert "Its code is version old, with which it was requested." in said
    assert "Newer code has come since (new)" in said


def test_the_child_of_a_run_and_what_belongs_to_it_keep_the_code_of_the_run() -> None:
    ledger = with_new_code()
    assert ledger.view.home_of(child()) == OLD
    assert ledger.view.home_of(sub_agent_id(child(), TYPE, "below")) == OLD


def test_a_run_that_is_tried_again_has_the_code_that_came_last() -> None:
    ledger = with_new_code().given(RunErrored("r", 1, "it broke", released=True))
    assert ledger.when(Retry("r")) == [RunRetried("r", "new")]
    assert ledger.run().options["pool"] == NEW


def test_a_parked_run_is_tried_as_soon_as_code_for_it_comes_also_if_that_is_installed() -> None:
    ledger = Ledger().given(asked(pool=OLD), placed())
    ledger.when(Unstarted("r", 1, "unfit", "input: months: Field required"))
    assert ledger.when(Adopt("other", {"elsewhere": ""})) == [CodeAdopted("other", {"elsewhere": ""})]
    assert ledger.when(Adopt("", {ORIGIN: ""})) == [CodeAdopted("", {ORIGIN: ""}), RunRetried("r", "")]
    assert "pool" not in ledger.run().options or ledger.run().options["pool"] is None
    assert not ledger.run().parked


def test_hosts_with_the_newest_code_are_kept_warm_and_a_boot_knows_it() -> None:
    ledger = Ledger()
    ledger.view.hosts.clear()
    ledger.when(Adopt("new", {ORIGIN: ""}))
    assert hosts_wanted(wants_of(ledger.view, ledger.limits))[0] == NEW
    assert hosts_wanted(wants_of(ledger.view, ledger.limits, warm=False)) == [], (
        "until somebody has come who says which code there is"
    )
    kind, body = encode(CodeAdopted("new", {ORIGIN: ""}))
    booted = restore(Boot(None, [], [FactRow(1, 5, "new", None, kind, body)], []))
    assert (booted.code.newest, booted.code.warm) == ({ORIGIN: "new"}, "new")


def failed_with_old_code() -> Ledger:
    """Tried again before the program with the mended code was started."""
    ledger = Ledger().given(asked(pool=OLD), placed(), begun(), RunErrored("r", 1, "it broke", released=True))
    ledger.given(CodeAdopted("old", {ORIGIN: ""}))
    assert ledger.when(Retry("r")) == [RunRetried("r", "old")]
    return ledger


def test_a_run_that_is_tried_again_takes_the_code_that_comes_before_its_next_attempt_begins() -> None:
    ledger = failed_with_old_code()
    said = " ".join(explain(ledger.view, ledger.run(), ledger.now_ms, ledger.limits))
    assert "No attempt has begun since: if newer code comes before that, it takes the newer one." in said
    assert ledger.when(Adopt("new", {ORIGIN: ""})) == [CodeAdopted("new", {ORIGIN: ""}), RunRetried("r", "new")]
    assert ledger.run().retries == 1, "it is one retry"
    ledger.view.hosts["h9"] = HostView("h9", NEW, up=True)
    made = ledger.enact(assign_hosts(ledger.view, ledger.now_ms, ledger.limits))
    assert [(fact.attempt, fact.host_id) for fact in made if isinstance(fact, AttemptStarted)] == [(2, "h9")]
    assert ledger.when(Adopt("newer", {ORIGIN: ""})) == [CodeAdopted("newer", {ORIGIN: ""})], "now it is pinned"
    assert ledger.run().options["pool"] == NEW
    said = " ".join(explain(ledger.view, ledger.run(), ledger.now_ms, ledger.limits))
    assert "Its code is version new, with which it was tried again. Newer code has come since (newer)" in said


def test_the_same_code_again_changes_nothing_for_a_run_that_is_to_begin_anew() -> None:
    assert failed_with_old_code().when(Adopt("old", {ORIGIN: ""})) == []


def test_after_a_boot_it_waits_for_the_first_program_but_not_for_ever() -> None:
    ledger = failed_with_old_code()
    ledger.view.hosts["h9"] = HostView("h9", OLD, up=True)
    ledger.view.code_due_ms = ledger.now_ms + 10
    assert ledger.enact(assign_hosts(ledger.view, ledger.now_ms + 9, ledger.limits)) == []
    assert len(ledger.enact(assign_hosts(ledger.view, ledger.now_ms + 10, ledger.limits))) == 1


def test_a_package_whose_part_for_a_type_is_the_same_is_not_newer_and_makes_no_other_pool_warm() -> None:
    ledger = Ledger().given(asked(pool=OLD), placed(), begun(), CodeAdopted("old", {ORIGIN: "same"}))
    ledger.when(Adopt("wide", {ORIGIN: "same", "more": "other"}))
    assert ledger.view.code.newest == {ORIGIN: "old", "more": "wide"}
    ledger.when(Adopt("narrow", {ORIGIN: "same"}))
    assert ledger.view.code.newest[ORIGIN] == "old"
    assert ledger.view.code.warm == "wide", "it brought something new"
    assert ledger.when(Adopt("narrow", {ORIGIN: "same"})) == [], "it is known by now"
    said = " ".join(explain(ledger.view, ledger.run(), ledger.now_ms, ledger.limits))
    assert "Newer code" not in said
    ledger.when(Adopt("narrow", {ORIGIN: "mended"}))
    assert ledger.view.code.newest[ORIGIN] == "narrow"
