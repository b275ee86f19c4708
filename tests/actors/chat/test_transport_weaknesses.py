"""The weaknesses of the transport recovery that we answer (spec §10), each shown to be absent by the tests that are named here."""

from __future__ import annotations

import pytest

from tests.kit import is_test

SHOWN_BY = """
B1  tests/actors/chat/test_broken_connections.py::test_a_tool_of_a_minute_outlives_a_connection_of_a_second
B1  tests/actors/chat/test_recovered_requests.py::test_a_late_result_corrects_what_the_model_was_told
B2  tests/policies/test_cautions.py::test_a4_the_caution_survives_any_partial_output_and_any_cut_at_the_end
B2  tests/actors/chat/test_recovered_requests.py::test_what_tools_did_in_a_turn_that_failed_is_in_the_next_request
B2  tests/actors/chat/test_broken_connections.py::test_a_half_written_call_in_front_of_a_whole_one_is_said_to_be_cut_off
B3  tests/policies/test_phases.py::test_case_46_every_cell_of_the_table
B4  tests/policies/test_phases.py::test_a5_twenty_disconnects_each_after_a_new_result_are_bounded_and_none_is_without_a_pause
B4  tests/actors/chat/test_recovered_requests.py::test_thoughts_that_a_rate_limit_cut_off_again_and_again_leave_a_notice_and_no_thought
B5  tests/actors/chat/test_lost_connections.py::test_a_stall_ends_the_attempt_for_those_who_watch_and_the_turn_goes_on
B5  tests/actors/chat/test_model.py::test_the_end_of_a_stream_is_not_the_end_of_an_answer
B6  tests/actors/chat/test_lost_connections.py::test_a_passing_refusal_is_waited_out
B7  tests/actors/chat/test_cancelled_turns.py::test_a_cancel_ends_a_turn_at_once_in_every_place
B7  tests/actors/chat/test_cancelled_turns.py::test_a_cancel_that_a_death_cut_short_still_stops_the_tools
B8  tests/actors/chat/test_rescue.py::test_a_call_that_died_is_not_made_again_and_the_model_is_told_why
B9  tests/actors/chat/test_deaths_of_turns.py::test_nothing_is_lost_or_done_twice_wherever_a_process_dies
B9  tests/actors/chat/test_incidents.py::test_a_call_that_has_begun_is_not_dropped_with_a_half_answer
B10 tests/actors/chat/test_broken_connections.py::test_a_tool_that_fails_while_the_connection_is_gone_reports_its_own_error
B11 tests/actors/chat/test_answer_reader.py::test_however_calls_are_streamed_each_ends_once_and_only_whole_ones_are_given_out
B11 tests/actors/chat/test_answer_reader.py::test_no_beginning_of_an_object_is_taken_for_one
B12 tests/actors/chat/test_lost_connections.py::test_a_lost_connection_is_recovered_in_silence
B12 tests/actors/chat/test_broken_connections.py::test_a_tool_that_never_returns_costs_its_own_limit_and_is_told_with_caution
B13 tests/actors/chat/test_recovered_requests.py::test_a_text_that_was_cut_off_is_gone_on_with_and_never_spliced_in_silence
B14 tests/actors/chat/test_recovered_requests.py::test_every_request_asks_for_its_model_also_one_that_recovers
B15 tests/actors/chat/test_broken_connections.py::test_a_tool_of_a_minute_outlives_a_connection_of_a_second
"""


@pytest.mark.parametrize("row", SHOWN_BY.split("\n")[1:-1])
def test_a_weakness_names_a_test_that_exists(row: str) -> None:
    """One row for each test, and at least one for each weakness."""
    weakness, test = row.split()
    assert weakness[0] == "B"
    assert is_test(test), test


def test_no_weakness_is_left_out() -> None:
    """B1 to B15."""
    assert {row.split()[0] for row in SHOWN_BY.split("\n")[1:-1]} == {f"B{number}" for number in range(1, 16)}
