"""The run by which an agent asks people outside of its own runs (`actors.life.asking`)."""

from __future__ import annotations

from typing import Any, ClassVar

from perdure.actors.agent.agent import Agent
from perdure.actors.code.schema import Shape
from perdure.actors.life.asks import found_type, told_of, wanted_of
from perdure.actors.life.run_context import RunContext
from perdure.policies import JsonObject


class Question(Agent):
    """Asks people what its input says, and gives what they have said."""

    _perdure_held: ClassVar[bool] = False

    async def run(self, asked: dict[str, Any], run: RunContext) -> dict[str, Any]:
        """Ask `{question, schema, args, to, people, self_answer, expires_ms, otherwise?, note?, type?}`. With a `type` the answer is held
        to it here; otherwise by whoever waits for it."""
        kind = asked.get("type")
        wanted = wanted_of(asked, Shape(Any if kind is None else found_type(kind, self._perdure.code_dir)))
        told = told_of(await run.hear(wanted, asked.get("note", "")))
        return {"question": wanted.question, "type": kind, **told}

    def get_agent_tool_summary(self, told: JsonObject, run: RunContext) -> str:
        if not told["answered"]:
            return "nobody answered"
        said = super().get_agent_tool_summary(told["value"], run)
        return f"{told['who']}: {said}" if told["who"] else f"nobody answered, which says {said}"
