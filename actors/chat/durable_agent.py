"""An agent of pydantic-ai that exists already, made durable.

    support = pydantic_ai.Agent("openai:gpt-5", output_type=Ticket, tools=[look_up], instructions="You answer customers.")
    Support = DurableAgent.of(support, name="Support")

    result = runtime.agent(Support, "alice").chat("My parcel is lost.")
    result.output        # what the library's agent returned

It is a chat agent. The library decides what is asked and called (`play`). Each turn, request and call is Perdure's, and
recovered as such.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.chat.conversation_state import BOUNDS_OF_CHATS
from perdure.actors.chat.play import is_overridden
from perdure.actors.chat.toolsets import checked_toolsets
from perdure.actors.chat.turn import TurnResult
from perdure.actors.code.author_call import hook
from perdure.actors.life.host_options import Checks
from perdure.actors.life.run_context import RunContext
from perdure.ledger import BadRequest

if TYPE_CHECKING:
    from pydantic_ai import Agent as LibraryAgent


class DurableAgent(ChatAgent[Any]):
    """A chat agent whose turns an agent of pydantic-ai plays.

    Its output is that of the library's agent, as plain data. Its tools are runs in hosts of their own, so a tool is told of its call
    (`ctx.deps`, `ctx.tool_call_id`, `ctx.tool_name`) and not of the conversation, and what it raises is told to the model. A tool says by
    its metadata what may happen after a death: `@agent.tool(metadata={"effect": "idempotent"})`, else it runs at most once.

    Class attributes:
        agent: the agent of pydantic-ai. The class is found by its module, so the agent is made where the module is imported.
        model: asked in place of the agent's own model.
    """

    agent: ClassVar[Any] = None

    _perdure_bounds: ClassVar[Checks] = {**BOUNDS_OF_CHATS, "agent": lambda _, value: _check(value)}

    @classmethod
    def of(
        cls, agent: LibraryAgent[Any, Any], *, name: str | None = None, deps: Callable[[], object] | None = None
    ) -> type[DurableAgent]:
        """A class of chat agents for an agent of pydantic-ai. Assign it to a variable of this name, at the top of a module.

        Args:
            agent: the agent.
            name: the name of the class; by default the agent's.
            deps: makes what the agent's tools get as `ctx.deps`, in each process that needs it; it may be async.

        Raises:
            BadRequest: naming the argument that is wrong.
        """
        _check(agent)
        chosen = agent.name if name is None else name
        if not isinstance(chosen, str) or not chosen.isidentifier():
            words = "give the name of the variable that the class is assigned to"
            raise BadRequest("name", f"{chosen!r:.200} is not a name of a class; {words}")
        about: dict[str, object] = {"agent": agent, "__module__": sys._getframe(1).f_globals["__name__"]}  # noqa: SLF001 - as namedtuple does
        if deps is not None:
            if not callable(deps):
                raise BadRequest("deps", f"{deps!r:.200} is not a function that makes them")
            about["get_deps"] = staticmethod(deps)
        return type(chosen, (cls,), about)

    @classmethod
    @hook
    def get_deps(cls) -> object:
        """What the agent's tools get as `ctx.deps`: made in each process that needs it. It may be async."""
        return None

    def get_model(self) -> object:
        """The model of the next request."""
        return self.agent.model if self.model is None else self.model

    def get_agent_tool_output(self, result: TurnResult, run: RunContext) -> Any:
        """The output of a run of this agent: that of the library's agent."""
        return result.output

    @property
    def library_agent(self) -> LibraryAgent[Any, Any]:
        """The agent of the library."""
        _check(self.agent)
        found: LibraryAgent[Any, Any] = self.agent
        return found

    @classmethod
    def _perdure_check(cls) -> None:
        super()._perdure_check()
        if cls.agent is not None:
            checked_toolsets(cls.agent.toolsets)

    @classmethod
    def _perdure_check_asked(cls) -> None:
        if cls.agent is None or not is_overridden(cls.agent):
            return
        name = cls.__name__
        raise BadRequest(
            "agent",
            f"it is overridden here (`with agent.override(...)`), which the host that plays a turn of {name} does not see. In a test "
            f"that plays a Laboratory, replace it in the class: `{name}.model = TestModel()`, or `{name}.agent = ...`",
        )

    @classmethod
    def _perdure_toolsets(cls) -> Sequence[Any]:
        _check(cls.agent)
        found: Sequence[Any] = cls.agent.toolsets
        return found

    @classmethod
    def _perdure_deps(cls) -> object:
        return cls.get_deps()


def _check(agent: object) -> None:
    from pydantic_ai import Agent as LibraryAgent  # noqa: PLC0415 - not before such an agent is made

    if not isinstance(agent, LibraryAgent):
        raise BadRequest("agent", f"{agent!r:.200} is not an agent of pydantic-ai")
