"""Spread, then pack: the tables of who goes where, and of how many hosts are wanted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from perdure.policies import (
    INFINITY,
    Limits,
    blamed_from,
    choose,
    is_behind,
    room_after,
    spare_hosts,
    wanted_hosts,
)

LIMITS = Limits(hosts_max=3, hosts_warm=1, pack_max=10)


@dataclass
class Candidate:
    host_id: str = "h"
    load: int = 0
    exclusive: bool = False
    draining: bool = False
    worn: bool = False
    up: bool = True
    is_loading: bool = False
    room: float = 10
    tenants: dict[str, None] = field(default_factory=dict)

    def waiting(self) -> Candidate:
        return replace(self, load=0)


def host(load: int = 0, **given: bool) -> Candidate:
    return Candidate(f"h{load}", load, tenants=dict.fromkeys(map(str, range(load))), **given)


CHOICES: list[tuple[str, list[Candidate], int, bool, int | None]] = [
    ("no host at all: wait", [], 1, False, None),
    ("an empty host is taken", [host(1), host()], 1, False, 1),
    ("the first empty one is taken", [host(), host()], 1, False, 0),
    ("while there is room for another host, nobody is packed", [host(1)], 1, False, None),
    ("room for as many as wait: wait", [host(1)], 2, False, None),
    ("more wait than there is room for: pack", [host(1)], 3, False, 0),
    ("the pool is full: pack where least is at work", [host(4), host(2), host(3)], 1, False, 1),
    ("a host is coming up for the one who waits", [host(1), host(2), host(up=False)], 1, False, None),
    ("more wait than hosts are coming up: pack", [host(1), host(2), host(up=False)], 2, False, 0),
    ("a full host takes nobody", [host(10), host(10), host(10)], 1, False, None),
    ("a draining host takes nobody", [host(draining=True), host(1), host(2)], 1, False, 1),
    ("a worn host is spared, empty or not", [host(worn=True), host(1, worn=True), host(3)], 9, False, 2),
    ("a worn host is better than none", [host(5, worn=True), host(10), host(10)], 9, False, 0),
    ("an exclusive host takes nobody", [host(exclusive=True), host(1), host(2)], 1, False, 1),
    ("a host that is not up takes nobody", [host(up=False)] * 3, 4, False, None),
    ("who must be alone takes an empty host", [host(1), host()], 1, True, 1),
    ("who must be alone is never packed", [host(1), host(1), host(1)], 5, True, None),
    ("who must be alone leaves the others their hosts", [*[host(1, exclusive=True)] * 3, host()], 1, True, None),
    ("an empty host beyond the pool is for who must be alone", [*[host(2)] * 3, host()], 1, False, 0),
    ("an empty host that imports code is taken", [host(1), host(is_loading=True)], 1, False, 1),
]


@pytest.mark.parametrize(
    ("hosts", "demand", "alone", "place"), [row[1:] for row in CHOICES], ids=[r[0] for r in CHOICES]
)
def test_choice(hosts: list[Candidate], demand: int, alone: bool, place: int | None) -> None:
    chosen = choose(hosts, demand, LIMITS, alone=alone)
    assert chosen is (None if place is None else hosts[place])


AGAIN: list[tuple[str, list[Candidate], bool, int | None]] = [
    ("who lost its host does not wait for another one", [host(1)], False, 0),
    ("nor for one that is coming", [host(2), host(1), host(up=False)], False, 1),
    ("it takes an empty host", [host(1), host()], False, 1),
    ("it waits if it must be alone", [host(1)], True, None),
    ("it waits if all are full", [host(10)], False, None),
    ("a host that imports code is passed over", [host(is_loading=True), host(2), host(1)], False, 2),
    ("a host that imports code is better than a full one", [host(is_loading=True), host(10), host(10)], False, 0),
    ("a host that imports code is better than none", [host(is_loading=True), host(up=False)], False, 0),
    ("a host that imports code is good for who must be alone", [host(1), host(is_loading=True)], True, 1),
]


@pytest.mark.parametrize(("hosts", "alone", "place"), [row[1:] for row in AGAIN], ids=[r[0] for r in AGAIN])
def test_choice_for_who_lost_its_host(hosts: list[Candidate], alone: bool, place: int | None) -> None:
    chosen = choose(hosts, 1, LIMITS, alone=alone, again=True)
    assert chosen is (None if place is None else hosts[place])


WANTED: list[tuple[str, list[Candidate], int, int, int]] = [
    ("nothing waits: the pool is kept warm", [], 0, 0, 1),
    ("a warm host is warm enough", [host()], 0, 0, 0),
    ("a host that is coming up is warm enough", [host(up=False)], 0, 0, 0),
    ("hosts at work are not warm", [host(1)], 0, 0, 1),
    ("as many as wait", [], 2, 0, 2),
    ("never more than the pool may have", [], 9, 0, 3),
    ("the pool is full", [host(1), host(1), host(1)], 9, 0, 0),
    ("a draining host does not count", [host(draining=True), host(1), host(1)], 9, 0, 1),
    ("who must be alone may double the pool", [host(1), host(1), host(1)], 2, 2, 2),
    ("and no more than that", [host(1)] * 3 + [host(1, exclusive=True)] * 3, 9, 9, 0),
    ("the pool stays open to others meanwhile", [host(1, exclusive=True)] * 3, 9, 4, 3),
    ("who is alone and waits for its children holds no host", [host(1, exclusive=True).waiting()] * 3, 1, 1, 2),
    ("an empty host serves one who must be alone", [host(1), host(1), host(1), host()], 1, 1, 0),
]


@pytest.mark.parametrize(("hosts", "demand", "alone", "count"), [row[1:] for row in WANTED], ids=[r[0] for r in WANTED])
def test_demand(hosts: list[Candidate], demand: int, alone: int, count: int) -> None:
    assert wanted_hosts(hosts, demand, alone, LIMITS) == count


BLAMED: list[tuple[str, list[int], int]] = [
    ("nobody was lost", [0, 0], 2),
    ("a few that were lost twice are kept alone", [2, 2, 1, 2, 0], 2),
    ("a batch that was lost twice shared a fate", [2] * 9, 3),
    ("whoever was lost more often than the batch stands out", [2, 2, 4, 2, 3, 2], 3),
]


@pytest.mark.parametrize(("losses", "count"), [row[1:] for row in BLAMED], ids=[r[0] for r in BLAMED])
def test_blame(losses: list[int], count: int) -> None:
    assert blamed_from(losses, LIMITS) == count


def test_runs_wait_for_a_host_that_is_behind_and_who_is_woken_does_not() -> None:
    behind = [replace(host(load), room=load) for load in (5, 6, 7)]
    assert choose(behind, 9, LIMITS, alone=False) is None
    assert choose(behind, 9, LIMITS, alone=False, urgent=True) is behind[0]
    behind[2].room = 8
    assert choose(behind, 9, LIMITS, alone=False) is behind[2]


def test_nobody_goes_to_a_blocked_host_while_there_is_another() -> None:
    hosts = [replace(host(1), room=0), host(9), host(8)]
    assert choose(hosts, 9, LIMITS, alone=False) is hosts[2]
    assert choose(hosts, 9, LIMITS, alone=False, urgent=True) is hosts[2]


def test_the_room_of_a_host_follows_what_it_tells() -> None:
    room: float = INFINITY
    told = []
    for load, behind in [(1_000, False), (1_000, True), (800, True), (500, False), (500, False), (60, True)]:
        room = room_after(room, load, behind=behind)
        told.append(room)
    assert told == [INFINITY, 500, 400, 800, 1_600, 100]
    assert [is_behind(late_ms, writes, Limits()) for late_ms, writes in [(0, 0), (1_000, 0), (0, 100), (999, 99)]] == [
        False,
        True,
        True,
        False,
    ]


def test_of_too_many_hosts_empty_ones_are_spare_and_the_last_ones_first() -> None:
    hosts = [host(2), Candidate("a"), Candidate("b"), host(1), Candidate("c"), Candidate("d", draining=True)]
    assert [each.host_id for each in spare_hosts(hosts, LIMITS)] == ["b", "c"]
    assert spare_hosts([host(1), host(2), host(3), host(4)], LIMITS) == []
    assert spare_hosts([Candidate(), Candidate()], Limits(hosts_max=1)) == [], (
        "two are needed by runs that are placed apart"
    )


def put(hosts: list[Candidate], waiting: int, limits: Limits) -> int:
    """Place all that wait, as far as they have a place; returns how many are left."""
    while waiting and (chosen := choose(hosts, waiting, limits, alone=False, lost=True)) is not None:
        chosen.load += 1
        chosen.tenants[str(chosen.load)] = None
        waiting -= 1
    return waiting


@pytest.mark.parametrize(("up", "coming"), [(1, 1), (1, 3), (3, 1)])
def test_runs_that_lost_their_host_leave_the_hosts_that_are_coming_their_share(up: int, coming: int) -> None:
    limits = Limits(hosts_max=up + coming, pack_max=1_000)
    hosts = [Candidate(f"h{n}", room=INFINITY, up=n < up) for n in range(up + coming)]
    left = put(hosts, 50, limits)
    share = -(-50 // (up + coming))
    assert [each.load <= share for each in hosts] == [True] * len(hosts)
    assert left == 50 - up * share
    for each in hosts:
        each.up = True
    assert put(hosts, left, limits) == 0
    loads = [each.load for each in hosts]
    assert max(loads) - min(loads) <= up


def test_who_was_woken_and_what_begins_waits_for_no_share() -> None:
    limits = Limits(hosts_max=2, pack_max=1_000)
    hosts = [Candidate("h", 40, room=INFINITY, tenants={"a": None}), host(up=False)]
    for asked in ({}, {"urgent": True}, {"urgent": True, "again": True}):
        assert choose(hosts, 10, limits, alone=False, **asked) is hosts[0]
    assert choose(hosts, 10, limits, alone=False, lost=True) is None
