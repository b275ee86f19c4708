"""What an author sees of an agent: these names and no others, so that there are more of them on purpose only."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from perdure.actors import Agent, ChatAgent, MessengerAgent, RunContext, TurnResult, exposed
from perdure.actors.code.signatures import run_shapes
from tests.kit import Stage

AGENT = """
    name path parent state sql transaction storage destroy keep_alive prepare
    on_start on_error on_state_changed validate_state
    run_agent_tool run_agent_tools as_completed first_ok cancel_agent_tool send_event ask
    inspect_agent_tool_run has_agent_tool_run list_agent_tool_runs
    get_agent_tool_summary
    clear_agent_tool_runs report_progress on_agent_tool_start on_agent_tool_finish on_progress
    run_fiber start_fiber stash inspect_fiber inspect_fiber_by_key list_fibers cancel_fiber cancel_fiber_by_key resolve_fiber
    delete_fibers on_fiber_recovered fibers
    schedule schedule_every schedules queue queued callback_retry
    agent sub_agent sub_agents on_before_sub_agent
    attempts_max max_concurrent_agent_tools agent_tool_reattach_no_progress_timeout_ms agent_tool_reattach_max_window_ms
    detached_max_budget_ms detached_no_progress_budget_ms
    exclusive num_cpus num_gpus memory accelerator_type label_selector resources runtime_env stands_alone migrate
"""
CHAT_AGENT = """
    model model_key instructions max_steps toolsets library_agent chat_recovery chat_stream_stall_timeout_ms chat_first_token_timeout_ms
    tool_timeout_ms context_overflow
    message_concurrency
    tools get_model get_model_settings get_instructions
    chat save_messages submit_messages continue_last_turn regenerate delete_messages attach feed cancel_chat cancel_all_chats clear
    add_messages get_messages inspect_turn list_turns delete_turns active_turn
    resolve_tool_call respond_to_approval has_pending_interaction wait_until_stable
    on_chat_response on_chat_error on_chat_recovery repair_interrupted_tool_part summarize_messages
    run format_agent_tool_input get_agent_tool_output format_detached_completion format_detached_milestone steer
"""
MESSENGER_AGENT = """
    messengers ask_threads ask_thread on_ask on_messenger_event receive deliver_notice cancel_reply retry_delivery list_deliveries
"""
GROUPS = {
    "fibers": "send start wait",
    "schedules": "get list history cancel pause resume retry",
    "queued": "list drop drop_all retry",
    "sub_agents": "has list abort delete",
    "storage": "snapshot restore durable fork",
}


def members(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_an_agent_has_these_public_members() -> None:
    assert members(Agent) == set(AGENT.split())
    assert members(ChatAgent) - members(Agent) == set(CHAT_AGENT.split())
    assert members(MessengerAgent) - members(ChatAgent) == set(MESSENGER_AGENT.split())
    assert [len(members(kind)) for kind in (Agent, ChatAgent, MessengerAgent)] == [68, 116, 126]


def test_the_rest_of_the_names_is_reserved_by_one_prefix() -> None:
    hidden = {name for name in dir(MessengerAgent) if name.startswith("_") and not name.startswith("__")}
    assert hidden
    assert {name for name in hidden if not name.startswith("_perdure_")} <= {
        "_is_protocol"
    }  # typing's, of a generic class


class Bare(ChatAgent):
    @exposed
    def attributes(self) -> list[str]:
        assert self._perdure_conversation is self._perdure_conversation
        return sorted(vars(self))

    @exposed
    def groups(self) -> dict[str, set[str]]:
        return {name: members(type(getattr(self, name))) for name in GROUPS}


async def test_what_perdure_keeps_on_an_object_is_under_one_attribute(stage: Stage) -> None:
    assert await stage.call(Bare, "attributes") == ["_perdure"]


async def test_the_groups_have_these_members(stage: Stage) -> None:
    found = await stage.call(Bare, "groups")
    assert {name: set(each) for name, each in found.items()} == {n: set(each.split()) for n, each in GROUPS.items()}


class Plan(BaseModel):
    steps: list[str]


class Planner(ChatAgent[Plan]):
    def get_agent_tool_output(self, result: TurnResult, run: RunContext) -> Plan:
        return Plan(steps=result.text.split())


def test_the_output_of_a_chats_runs_is_checked_against_the_type_that_its_class_names() -> None:
    later = type("Later", (Planner,), {})
    assert [run_shapes(kind).gives.annotation for kind in (ChatAgent, Planner, later)] == [Any, Plan, Plan]
