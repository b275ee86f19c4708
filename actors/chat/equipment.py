"""What the turns of a chat agent are played with: its tools, those of a turn's client, and the model."""

from __future__ import annotations

from typing import Any

from perdure.actors.chat.chat_hooks import ChatHooks
from perdure.actors.chat.delegated_tools import client_tools
from perdure.actors.chat.model import load_library, resolve_model
from perdure.actors.chat.tools import Tool
from perdure.actors.chat.toolset import Toolset
from perdure.actors.chat.turn import Turn
from perdure.actors.life.life import Life


class Equipment:
    """The equipment of one chat agent, in one life of it."""

    def __init__(self, agent: ChatHooks, life: Life) -> None:
        self._agent, self._life = agent, life
        self._model: Any = None
        self._toolset: Toolset | None = None

    def toolset(self) -> Toolset:
        """The agent's own tools."""
        if self._toolset is None:
            self._toolset = Toolset.of(self._agent)
        return self._toolset

    def client_tools(self, turn: Turn) -> list[Tool]:
        """The tools that the turn's client brought with it."""
        return client_tools(turn.options.get("client_tools", ()))

    async def model(self) -> Any:
        """The model, resolved once per life."""
        wanted = self._agent.get_model()
        if self._model is None:
            await self._life.threads.run(lambda: load_library(wanted))
        if self._model is None or self._model[0] is not wanted:
            self._model = (wanted, resolve_model(wanted))
        return self._model[1]
