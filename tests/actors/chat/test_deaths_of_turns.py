"""A process dies at each place of a turn with four tool calls: whoever asked gets the answer, and nothing happens twice."""

from __future__ import annotations

import pytest

from tests.actors.chat.desk import SCRIPT, WHOLE, Outside, play


@pytest.mark.shows(
    chat_recovery="C-0568 C-0609 C-0610 C-0611 C-0622 C-1037 C-1305 C-1306 W-13 W-16 W-17", transport_recovery="A2 B9"
)
@pytest.mark.thorough
def test_nothing_is_lost_or_done_twice_wherever_a_process_dies() -> None:
    """Any of supervisor, agent's host and tools' hosts, at every kill point that the turn visits (A1, A2, W-13, W-16, W-17, W-18)."""
    Outside.begin(SCRIPT)
    whole, _, places = play("sum")
    assert whole.text == WHOLE
    assert places > 80
    uncertain = [place for place in range(1, places + 1) if not _is_whole_after_death(place)]
    assert len(uncertain) < places / 8, "only a call that died at work may have no result"


def _is_whole_after_death(place: int) -> bool:
    Outside.begin(SCRIPT)
    result, listeners, _ = play("sum", kill_at=place)
    assert result.status == "completed", f"kill_at={place}: {result}"
    assert max(Outside.effects.values()) == 1, f"kill_at={place}: {Outside.effects}"
    assert all(len(each.ends) == 1 for each in listeners), f"kill_at={place}: {[each.ends for each in listeners]}"
    assert listeners[-1].ends == ["on_done"]
    assert Outside.provider.counters().illegal == 0, f"kill_at={place}: {Outside.provider.log()}"
    unknown = [part for part in result.message["parts"] if "OUTCOME UNKNOWN" in part.get("errorText", "")]
    assert unknown or result.text == WHOLE, f"kill_at={place}: {result.text}"
    return not unknown


@pytest.mark.parametrize("place", [20, 40, 60])
def test_the_numbers_of_events_go_on_across_a_death(place: int) -> None:
    """One listener's events are followed by the next one's without a hole and without a repetition (invariant 7)."""
    Outside.begin(SCRIPT)
    result, listeners, _ = play("sum", kill_at=place)
    heard = [event for each in listeners for event in each.types]
    ends = len(listeners)
    assert len(heard) + ends == result.next_event
