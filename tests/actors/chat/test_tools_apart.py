"""The run of a tool is never on the host of the agent that asked for it, also under load: so it outlives that agent."""

from __future__ import annotations

import asyncio

import pytest

from perdure.actors import Client
from perdure.policies import Limits
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import Outside
from tests.actors.chat.talk import Worker
from tests.kit import address

USERS = [f"user-{number}" for number in range(8)]


def asking(name: str) -> ScriptedQuestion:
    """A question to which the model answers by the call of a slow tool."""
    return ScriptedQuestion(
        asks=name, rounds=(Round(calls=(ScriptedCall(name="work", arguments={"what": name, "seconds": 120}),)),)
    )


@pytest.mark.parametrize("hosts_max", [1, 2, 4])
def test_tools_of_many_users_outlive_the_hosts_of_those_who_asked(hosts_max: int) -> None:
    """Eight agents on few hosts, each with a tool at work. Wherever the agents are, their tools are elsewhere; a death of any of their
    hosts costs no call that was not there itself, and none is made twice."""
    Outside.begin(Script(questions=tuple(map(asking, USERS))))
    limits = Limits(hosts_max=hosts_max)

    with Laboratory(3, limits=limits) as laboratory:

        def together() -> list[str]:
            """Calls that share a host with their asker."""
            if not laboratory.supervisors:
                return []
            view = laboratory.supervisors[-1].view
            placed = [run for run in view.runs.values() if run.is_live and run.is_placed and run.parent]
            hosts = {run.run_id: (view.agents[run.child].host_id, view.agents.get(run.parent)) for run in placed}
            return [run_id for run_id, (host, asker) in hosts.items() if asker is not None and asker.host_id == host]

        async def story(client: Client) -> None:
            asked = [
                asyncio.ensure_future(client.call(Worker, name, "chat", (name,), {"request_id": f"asked-{name}"}))
                for name in USERS
            ]
            while sum(count for (what, _), count in Outside.effects.items() if what == "began") < len(USERS):
                assert not together()
                await asyncio.sleep(0.1)
            view = laboratory.supervisors[-1].view
            victim = address(Worker, "user-0")
            run = next(run for run in view.runs.values() if run.parent == victim)
            host, elsewhere = view.agents[victim].host_id, view.agents[run.child].host_id
            assert host != elsewhere
            laboratory.simulation.kill(host)
            results = await asyncio.gather(*asked)
            assert all(result.ok for result in results)
            assert Outside.effects["done", "user-0"] == 1

        laboratory.play(story)
        laboratory.settle()
        laboratory.simulation.raise_errors()
    assert all(count == 1 for (what, _), count in Outside.effects.items() if what == "began")
