"""A tool that asks for something of Ray runs on a host that has it, wherever the agent is that asked for the call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import ChatAgent, Client, PoolSpec, tool
from perdure.actors.chat.tools import Toolset, function_tool
from perdure.actors.supervisor.pool import spec_of
from perdure.ledger import BadRequest, pool_key
from perdure.policies import Limits
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import Outside

CALLS = tuple(ScriptedCall(name=name, arguments={"what": "x"}) for name in ("render", "note"))
SCRIPT = Script(questions=(ScriptedQuestion(asks="render", rounds=(Round(calls=CALLS),)),))
GPU = PoolSpec(resources=(("GPU", 0.5), ("memory", 2_000_000_000)), labels=(("zone", "!a"),))


@tool(effect="pure", num_gpus=0.5, memory=2e9, label_selector={"zone": "!a"})
async def render(what: str) -> str:
    """Render a picture."""
    Outside.effects["began", what] += 1
    await asyncio.sleep(30)
    return f"rendered {what}"


@tool
async def note(what: str) -> str:
    """Note something."""
    return f"noted {what}"


class Painter(ChatAgent):
    """Has a tool that needs a GPU, and needs none itself."""

    def tools(self) -> list[Any]:
        return [render, note]

    def get_model(self) -> Any:
        return Outside.model


def test_the_calls_of_a_tool_go_where_its_gpu_is_in_every_attempt_and_its_agent_and_other_tools_do_not() -> None:
    Outside.begin(SCRIPT)
    with Laboratory(3, limits=Limits(hosts_max=2)) as laboratory:

        async def story(client: Client) -> None:
            asked = asyncio.ensure_future(client.call(Painter, "p", "chat", ("render",), {}))
            while not Outside.effects["began", "x"]:
                await asyncio.sleep(0.1)
            view = laboratory.supervisors[-1].view
            (run,) = [run for run in view.runs.values() if run.is_live and run.options.get("pool")]
            host = view.hosts[view.agents[run.child].host_id]
            assert spec_of(host.spec) == spec_of(run.options["pool"]) == GPU
            laboratory.simulation.kill(host.host_id)
            assert (await asked).text.startswith("Done: 2 results.")
            assert Outside.effects["began", "x"] == 2
            pools = sorted(spec_of(run.options.get("pool")) for run in laboratory.supervisors[-1].view.runs.values())
            assert pools == sorted([PoolSpec(), GPU])
            asker = next(host for host in view.hosts.values() if any("Painter" in each for each in host.tenants))
            assert pool_key(asker.spec) == ""

        laboratory.play(story)
        laboratory.settle()
        laboratory.simulation.raise_errors()


def test_what_is_none_or_nothing_asks_for_nothing() -> None:
    def plain(what: str) -> str:
        return what

    options: dict[str, Any] = {"num_gpus": None, "accelerator_type": None, "label_selector": {}, "memory": 0}
    assert function_tool(tool(inline=True, **options)(plain)).placement is None


def test_a_method_cannot_ask_for_a_host_because_it_has_none() -> None:
    class Wrong(ChatAgent):
        @tool(num_gpus=1)
        def look(self) -> str:
            """Look."""
            return ""

    with pytest.raises(
        BadRequest, match=r"look asks for what is given to a host of the call's own, and a method has none"
    ):
        Toolset.declared(Wrong)
