"""The checks bite: each invariant is broken on purpose once, and found out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.actors import Client, Supervisor
from perdure.actors.link.messages import Deliver, Message, RunEnded, RunsEnded, Start, Starts, Wake
from perdure.ledger import FactRow, View
from perdure.ledger.codec import encode
from perdure.ledger.facts import AgentActivated, AttemptStarted, ProgressReported, RunAborted, RunSucceeded
from perdure.ledger.indexes import line_for
from perdure.ledger.storage.agent_storages import AgentStorages
from perdure.scenarios.cast.workers import Boss, BossJob, Task, Worker
from perdure.scenarios.testing.checks import (
    LAST_LIFE,
    Violation,
    demand,
    left_behind,
    out_of_step,
    premature,
    strangers,
    unbalanced,
    unfinished,
    unlike_the_inboxes,
    unlike_the_shadow,
    unlike_the_snapshot,
)
from perdure.scenarios.testing.laboratory import Laboratory

BOSS = "boss@perdure.swarm:Boss"
JOBS = [BossJob(run_id="one", task=Task(steps=1)), BossJob(run_id="two", task=Task(pause_ms=60_000, steps=1))]


async def begin(client: Client) -> None:
    """One run that ends at once, and one that is still under way."""
    await client.call(Boss, "boss", "begin", (JOBS,), {})
    while (await client.ask("inspect", "one"))["deliveries"].get("finish") != "delivered":
        await client.ask("audit")
    while (await client.ask("inspect", "two"))["status"] != "running":
        await client.ask("audit")


@pytest.fixture
def laboratory() -> Iterator[Laboratory]:
    with Laboratory(3) as made:
        made.play(begin)
        yield made


@pytest.fixture
def view(laboratory: Laboratory) -> View:
    kept: Supervisor = laboratory.supervisors[-1]
    return kept.view


def test_a_healthy_cluster_passes_every_check(laboratory: Laboratory, view: View) -> None:
    shadow = laboratory.store.shadow
    demand(
        unlike_the_shadow(view, shadow),
        out_of_step(view),
        unbalanced(view),
        strangers(laboratory.hosts.values(), shadow),
    )


BREAKAGES: dict[str, Callable[[View], object]] = {
    "index children": lambda view: view.children.clear(),
    "index placed": lambda view: view.placed.update(nobody=1),
    "index awaiting": lambda view: view.awaiting.update(nobody=1),
    "index mailbox": lambda view: view.mailbox.update(nobody={"one!finish": None}),
    "waits for no place": lambda view: view.queues.join(line_for(None), "one"),
    "has tenants": lambda view: next(iter(view.hosts.values())).tenants.update(ghost=None),
    "has load": lambda view: setattr(next(iter(view.hosts.values())), "load", 7),
    "and its child on": lambda view: setattr(view.runs["two"], "host_id", "elsewhere"),
}


@pytest.mark.parametrize("complaint", BREAKAGES)
def test_an_index_that_disagrees_with_its_records_is_found(view: View, complaint: str) -> None:
    BREAKAGES[complaint](view)
    assert any(complaint in each for each in out_of_step(view))


def test_a_run_that_nobody_will_look_at_is_found(view: View) -> None:
    run = view.runs["two"]
    run.host_id = ""
    view.timers.armed.pop("two", None)
    assert any("is in no queue" in each for each in out_of_step(view))


def test_a_record_that_is_not_the_fold_of_its_facts_is_found(laboratory: Laboratory, view: View) -> None:
    view.runs["two"].losses += 1
    assert list(unlike_the_shadow(view, laboratory.store.shadow)) == ["run two: losses is kept as 1, and folds to 0"]


def test_a_record_that_was_dropped_is_found(laboratory: Laboratory, view: View) -> None:
    del view.agents[BOSS]
    assert any(BOSS in each for each in unlike_the_shadow(view, laboratory.store.shadow))


def test_a_tally_that_does_not_add_up_is_found(view: View) -> None:
    view.tally["delivered"] -= 1
    assert list(unbalanced(view))


def test_a_boot_that_would_remember_something_else_is_found(laboratory: Laboratory) -> None:
    shadow = laboratory.store.shadow
    assert not list(unlike_the_snapshot(laboratory.store, shadow))
    shadow.runs["one"].summary = "forged"
    assert any("run one: summary" in each for each in unlike_the_snapshot(laboratory.store, shadow))


def test_an_agent_that_lives_on_two_hosts_is_found(laboratory: Laboratory) -> None:
    first, second = list(laboratory.hosts.values())[:2]
    agent, tenant = next(iter(first.tenants.items())) if first.tenants else next(iter(second.tenants.items()))
    for host in (first, second):
        host.tenants[agent] = tenant
    assert any("lives on" in each for each in strangers(laboratory.hosts.values(), laboratory.store.shadow))


def test_a_life_that_the_ledger_never_began_is_found(laboratory: Laboratory) -> None:
    tenant = next(tenant for host in laboratory.hosts.values() for tenant in host.tenants.values())
    tenant.incarnation += 1_000
    assert any("the ledger knows" in each for each in strangers(laboratory.hosts.values(), laboratory.store.shadow))


FORGED = {
    "ended twice": ("one", RunAborted("one", "too late")),
    "another attempt": ("two", AttemptStarted("two", 2, 99, "h")),
    "was activated while it lives": (BOSS, AgentActivated(BOSS, 99, "h")),
    "then came ProgressReported": ("two", ProgressReported("two", 1, b"\x80")),
    "was next": ("two", RunSucceeded("two", 1, None, "", True)),
}


@pytest.mark.parametrize("complaint", FORGED)
def test_a_fact_that_may_never_become_durable_is_found(laboratory: Laboratory, complaint: str) -> None:
    store = laboratory.store
    subject, fact = FORGED[complaint]
    if complaint.startswith("then came"):
        store.shadow.runs[subject].cleared = True
    frame = (
        99 if complaint == "was next" else store.shadow.runs[subject].frames if subject in store.shadow.runs else None
    )
    kind, body = encode(fact)
    try:
        store.append([FactRow(store.shadow.seq + 1, 0, subject, frame, kind, body)], [])
    except AssertionError:
        assert complaint == "ended twice"  # the fold refuses it too
    assert any(complaint in each for each in store.violations)
    with pytest.raises(Violation):
        laboratory.look()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [("INSERT INTO told SELECT * FROM told", "took effect 2 times"), ("DELETE FROM told", "left no trace")],
)
def test_a_handler_that_took_effect_twice_or_not_at_all_is_found(
    laboratory: Laboratory, view: View, change: str, complaint: str
) -> None:
    laboratory.simulation.close()
    agent_storages = AgentStorages(laboratory.disk)
    agent_storages.open(BOSS, LAST_LIFE).sql(change)
    agent_storages.close()
    assert any(complaint in each for each in unlike_the_inboxes(laboratory.disk, view, [BOSS], diaries=True))


@pytest.mark.parametrize(
    ("slots", "complaint"), [({"finish": "pending"}, "counts as pending"), ({}, "was never told to its parent")]
)
def test_an_end_that_does_not_count_as_told_is_found(
    laboratory: Laboratory, view: View, slots: dict[str, Any], complaint: str
) -> None:
    laboratory.simulation.close()
    view.runs["one"].slots = slots
    assert any(complaint in each for each in unlike_the_inboxes(laboratory.disk, view, [BOSS], diaries=True))


def test_work_that_is_left_is_found(view: View) -> None:
    assert any("run two is running" in each for each in unfinished(view))


def test_a_storage_that_outlived_its_cleared_run_is_found(laboratory: Laboratory, view: View) -> None:
    del view.runs["one"]
    left = [("one", "perdure.swarm:Worker")]
    assert list(left_behind(laboratory.disk, view, left))


MESSAGES = [
    Start(f"two@{__name__}", 999, "two", 1, b"", collect=False, options={}),
    Starts(__name__, {}, ["two"], [999], [b""]),
    RunsEnded(__name__, ["two"], [None], [""]),
    Wake(BOSS, 999),
    RunEnded("two", {"status": "completed"}),
    Deliver(BOSS, 1, [("two!finish", "finish", "on_done", {"run_id": "two"}, {})]),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_about_what_is_not_durable_is_found(laboratory: Laboratory, message: Message) -> None:
    assert list(premature(message, laboratory.store.shadow))


def test_a_message_about_what_is_durable_passes(laboratory: Laboratory) -> None:
    assert not list(premature(RunEnded("one", {"status": "completed"}), laboratory.store.shadow))


def test_a_violation_comes_out_of_the_run(laboratory: Laboratory) -> None:
    laboratory.supervisors[-1].view.placed["nobody"] = 1

    async def again(client: Client) -> None:
        await client.run(Worker, Task(), run_id="three")

    with pytest.raises(Violation, match="index placed"):
        laboratory.play(again)


def test_many_complaints_are_told_in_a_few_words() -> None:
    with pytest.raises(Violation, match="a; b; c; d; e; and 2 more"):
        demand(list("abcdefg"))
