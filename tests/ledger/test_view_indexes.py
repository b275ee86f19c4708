"""The indexes by which records are found: each gives what a look at everything would give, and costs what is new."""

from __future__ import annotations

import math
import pickle
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.ledger.ids import is_within
from perdure.ledger.indexes import LETTERS_MAX, LOOK_MAX, Families, LineKey, PendingMail, Timers, WaitQueues, line_for

PAUSE_MS = 2_000
KEYS = ["a", "b", "c", "d"]
AGENTS = ["a@m:A", "a@m:A>b@m:B", "a@m:A>b@m:B>c@m:C", "a@m:A>c@m:f.<locals>.C", "a@m:Ab", "b@m:B>a@m:A"]

keys = st.sampled_from(KEYS)


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(AGENTS))))
def test_a_family_is_whoever_is_known_within_an_agent(story: list[tuple[bool, str]]) -> None:
    families, known = Families(), dict[str, None]()
    for comes, agent in story:
        if comes:
            families.add(agent)
            known[agent] = None
        else:
            families.remove(agent)
            known.pop(agent, None)
        for each in AGENTS:
            assert set(families.of(each)) == {each, *(other for other in known if is_within(other, each))}


@given(st.lists(st.tuples(st.sampled_from(["arm", "arm by", "disarm", "fire"]), keys, st.integers(0, 30))))
def test_timers_fire_what_is_armed_and_nothing_else(story: list[tuple[str, str, int]]) -> None:
    timers, armed, now_ms = Timers(), set[tuple[int, str]](), 0
    for move, key, ms in story:
        at_ms = now_ms + ms
        if move == "arm" or (move == "arm by" and all(at_ms < time for time, other in armed if other == key)):
            armed.add((at_ms, key))
        if move == "disarm":
            timers.disarm(key)
            armed = {each for each in armed if each[1] != key}
        elif move == "fire":
            now_ms = at_ms
            timers.fire(now_ms)
            assert set(timers.fired) == {other for time, other in armed if time <= now_ms}
            armed = {each for each in armed if each[0] > now_ms}
        else:
            (timers.arm if move == "arm" else timers.arm_by)(key, at_ms)
        assert timers.next_at_ms == min((time for time, _ in armed), default=math.inf)
        assert {(time, other) for other, times in timers.armed.items() for time in times} == armed


def test_times_at_which_nothing_is_due_any_more_are_not_kept() -> None:
    timers = Timers()
    for number in range(5_000):
        timers.arm("stays", 10_000_000)
        timers.arm(f"run-{number}", 3_600_000 + number)
        timers.disarm(f"run-{number}")
    assert len(pickle.dumps(timers)) < 20_000, "a thousand numbers, not five thousand and their keys"
    assert timers.next_at_ms == 10_000_000


@given(st.lists(st.tuples(st.sampled_from(["join", "leave"]), keys, st.booleans())))
def test_a_line_keeps_its_order_and_its_length(story: list[tuple[str, str, bool]]) -> None:
    lines, model = WaitQueues(), dict[LineKey, dict[str, None]]()
    for move, who, exclusive in story:
        key = line_for([1, [], None, True] if exclusive else None)
        if move == "join":
            lines.join(key, who)
            model.setdefault(key, {})[who] = None
        else:
            lines.leave(key, who)
            model.get(key, {}).pop(who, None)
        assert {each: list(lines.walk(each)) for each in lines.keys} == {
            each: list(m) for each, m in model.items() if m
        }
        assert (len(lines), sorted(lines)) == (
            sum(map(len, model.values())),
            sorted(w for m in model.values() for w in m),
        )


def test_who_walks_along_a_line_meets_each_once_while_some_leave() -> None:
    lines, key, everybody = WaitQueues(), line_for(None), [f"{number:04}" for number in range(5 * LOOK_MAX)]
    for who in everybody:
        lines.join(key, who)
    met = []
    for who in lines.walk(key):
        met.append(who)
        if int(who) % 3:
            lines.leave(key, who)
    assert met == everybody
    assert lines.first(key) == everybody[::3][:LOOK_MAX]


moves: Any = st.one_of(
    st.tuples(st.sampled_from(["add", "remove", "hand", "take back"]), keys, st.just(0)),
    st.tuples(st.just("put off"), keys, st.integers(0, 5_000)),
    st.tuples(st.just("later"), keys, st.sampled_from([1, 500, PAUSE_MS])),
)


@given(st.lists(moves))
def test_a_mailbox_hands_over_what_is_new_or_due_and_loses_nothing(story: list[tuple[str, str, int]]) -> None:
    """The model keeps, for each pending mail, from when on it is to be handed over."""
    box, due_ms, handed, now_ms = PendingMail(), dict[str, int](), set[str](), 0
    for move, key, ms in story:
        now_ms += ms if move == "later" else 0
        if move == "add" and key not in due_ms:
            box.add(key)
            due_ms[key] = 0
        elif move == "remove":
            box.remove(key)
            due_ms.pop(key, None)
            handed.discard(key)
        elif move == "put off" and key in due_ms:
            box.put_off(key, now_ms + ms, 1)
            due_ms[key] = now_ms + ms
            handed.discard(key)
        elif move == "take back":
            box.take_back()
            due_ms.update(dict.fromkeys(handed & set(due_ms), 0))
            handed.clear()
        elif move == "hand":
            expected = {each for each, at_ms in due_ms.items() if at_ms <= now_ms}
            assert set(box.to_hand(now_ms, PAUSE_MS)) == expected
            due_ms.update(dict.fromkeys(expected, now_ms + PAUSE_MS))
            handed |= expected
        assert set(box) == set(due_ms)
        assert len(box) == len(due_ms)
        assert all(each in box for each in due_ms)
        outstanding = any(at_ms <= now_ms or each in handed for each, at_ms in due_ms.items())
        assert box.is_outstanding(now_ms) == outstanding


def test_so_many_letters_are_with_a_life_at_a_time_and_they_come_in_order() -> None:
    box, everything = PendingMail(), [f"{number:05}" for number in range(3 * LETTERS_MAX)]
    for each in everything:
        box.add(each)
    assert box.to_hand(0, PAUSE_MS) == everything[:LETTERS_MAX]
    assert box.to_hand(0, PAUSE_MS) == []
    for each in everything[:10]:
        box.remove(each)
    assert box.to_hand(1, PAUSE_MS) == everything[LETTERS_MAX : LETTERS_MAX + 10]
    box.take_back()
    assert box.to_hand(2, PAUSE_MS) == everything[10 : LETTERS_MAX + 10]


def test_a_mail_that_is_due_for_its_retry_does_not_wait_behind_those_that_came_later() -> None:
    box = PendingMail()
    for each in ("failed", *map(str, range(2 * LETTERS_MAX))):
        box.add(each)
    box.to_hand(0, PAUSE_MS)
    box.put_off("failed", 100, 1)
    box.remove("0")
    assert box.to_hand(100, PAUSE_MS)[:1] == ["failed"]
