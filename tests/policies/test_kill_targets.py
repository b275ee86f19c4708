"""Who is killed next: by dice and by whom the hosts carry, never by ids that are drawn anew."""

from __future__ import annotations

from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import StrikeTarget, carriers, from_here, in_turns, victims
from perdure.policies.kill_targets import Carrier

HOMES = [("b@m:A", "y"), ("a@m:A", "y"), ("c@m:A", "x"), ("d@m:A", "elsewhere")]


def test_hosts_are_told_apart_by_their_agents_and_those_without_any_come_last() -> None:
    assert carriers(["z", "x", "y"], HOMES) == [
        Carrier("y", ("a@m:A", "b@m:A")),
        Carrier("x", ("c@m:A",)),
        Carrier("z", ()),
    ]


@given(st.integers(0, 1_000), st.permutations(["h1", "h2", "h3", "h4"]), st.sampled_from([0.3, 0.5, 1.0, None]))
def test_other_ids_of_hosts_give_the_same_choice(seed: int, renamed: list[str], fraction: float | None) -> None:
    """Whatever a life calls its hosts, the dice hit those with the same agents."""
    homes = {f"agent-{number}": f"h{number % 4 + 1}" for number in range(9)}
    names = dict(zip(["h1", "h2", "h3", "h4"], renamed, strict=True))
    for target in (StrikeTarget.HOST, StrikeTarget.AGENT):
        hit = victims(target, carriers(names, homes.items()), fraction, Random(seed).random)
        others = [(agent, names[host]) for agent, host in homes.items()]
        assert victims(target, carriers(renamed, others), fraction, Random(seed).random) == [
            names[each] for each in hit
        ]


@given(st.integers(0, 40), st.floats(0.001, 1.0), st.integers(0, 1_000))
def test_a_share_is_rounded_up_and_hits_nobody_twice(count: int, fraction: float, seed: int) -> None:
    hosts = [Carrier(f"h{number}") for number in range(count)]
    hit = victims(StrikeTarget.HOST, hosts, fraction, Random(seed).random)
    assert len(set(hit)) == len(hit) <= count
    assert fraction * count - 1e-6 <= len(hit) < fraction * count + 1


@pytest.mark.parametrize(("fraction", "count"), [(0.3, 3), (0.31, 4), (0.01, 1), (1.0, 10)])
def test_three_tenths_of_ten_are_three(fraction: float, count: int) -> None:
    hosts = [Carrier(str(number)) for number in range(10)]
    assert len(victims(StrikeTarget.HOST, hosts, fraction, Random(1).random)) == count


def test_the_host_of_an_agent_is_the_likelier_the_more_agents_it_carries_and_never_an_empty_one() -> None:
    hosts = [Carrier("full", ("a", "b", "c")), Carrier("one", ("d",)), Carrier("empty")]
    rolls = [number / 8 for number in range(8)]
    assert [victims(StrikeTarget.AGENT, hosts, None, lambda roll=roll: roll)[0] for roll in rolls] == ["full"] * 6 + [
        "one"
    ] * 2
    assert victims(StrikeTarget.AGENT, hosts[2:], 0.5, lambda: 0.0) == []
    assert victims(StrikeTarget.HOST, hosts[2:], None, lambda: 0.99) == ["empty"]
    assert victims(StrikeTarget.HOST, [], None, lambda: 0.0) == victims(StrikeTarget.HOST, [], 0.5, lambda: 0.0) == []


@given(st.integers(0, 1_000), st.integers(0, 20))
def test_every_kind_comes_once_before_any_comes_twice(seed: int, count: int) -> None:
    die, kinds = Random(seed), ["host", "agent", "supervisor"]
    drawn = list(islice(in_turns(kinds, lambda each: die.sample(each, len(each))), count))
    counts = [drawn.count(kind) for kind in kinds]
    assert max(counts) - min(counts) <= 1


def test_a_kind_that_finds_nobody_gives_way_to_the_next() -> None:
    assert from_here(["host", "agent", "supervisor"], "agent") == ["agent", "supervisor", "host"]
