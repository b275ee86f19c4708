"""Which code runs and agents have when new code comes."""

from __future__ import annotations

from perdure.ledger import (
    Adopt,
    Boot,
    Retry,
    RunFailed,
    Unstarted,
    explain,
    hosts_wanted,
    package_of,
    restore,
    sub_agent_id,
    with_package,
)
from perdure.ledger.codec import encode
from perdure.ledger.facts import AgentActivated, AlarmSet, CodeAdopted, RunRetried
from perdure.ledger.ids import origin_of
from perdure.ledger.store.store import FactRow
from tests.kit import PARENT, TYPE, Ledger, asked, begun, child, placed

OLD, NEW = with_package(None, "old"), with_package(None, "new")
ORIGIN = "tests"


def with_new_code() -> Ledger:
    ledger = Ledger().given(asked(pool=OLD), placed(), begun())
    assert ledger.when(Adopt("new", [ORIGIN])) == [CodeAdopted("new", [ORIGIN])]
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


def test_the_same_code_again_is_no_news() -> None:
    assert with_new_code().when(Adopt("new", [ORIGIN])) == []


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
    ledger = with_new_code().given(RunFailed("r", 1, "it broke", released=True))
    assert ledger.when(Retry("r")) == [RunRetried("r", "new")]
    assert ledger.run().options["pool"] == NEW


def test_a_parked_run_is_tried_as_soon_as_code_for_it_comes_also_if_that_is_installed() -> None:
    ledger = Ledger().given(asked(pool=OLD), placed())
    ledger.when(Unstarted("r", 1, "unfit", "input: months: Field required"))
    assert ledger.when(Adopt("other", ["elsewhere"])) == [CodeAdopted("other", ["elsewhere"])]
    assert ledger.when(Adopt("", [ORIGIN])) == [CodeAdopted("", [ORIGIN]), RunRetried("r", "")]
    assert "pool" not in ledger.run().options or ledger.run().options["pool"] is None
    assert not ledger.run().parked


def test_hosts_with_the_newest_code_are_kept_warm_and_a_boot_knows_it() -> None:
    ledger = Ledger()
    ledger.view.hosts.clear()
    ledger.when(Adopt("new", [ORIGIN]))
    assert hosts_wanted(ledger.view, ledger.limits)[0] == NEW
    assert hosts_wanted(ledger.view, ledger.limits, warm=False) == [], (
        "until somebody has come who says which code there is"
    )
    kind, body = encode(CodeAdopted("new", [ORIGIN]))
    booted = restore(Boot(None, [], [FactRow(1, 5, "new", None, kind, body)], []))
    assert (booted.code, booted.warm) == ({ORIGIN: "new"}, "new")
