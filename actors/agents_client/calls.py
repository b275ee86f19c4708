"""What a client of the npm package `agents` does with any agent: it sets the state and calls methods (client protocols A.4, A.5)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from perdure.actors.agent.agent import Agent
from perdure.actors.agents_client.line import Line, encoded, words_of
from perdure.actors.code.signatures import gives_bit_by_bit
from perdure.actors.gateway.backend import Reached, asked
from perdure.actors.gateway.state_feed import Known, WatchedState
from perdure.actors.life.state_watch import version_of
from perdure.actors.link.caller import CallerSide
from perdure.ledger import AgentUnreachable, PerdureError, pack_value
from perdure.policies import JsonObject

CROSSES_S: Final = 5.0
UNKNOWN: Final = "unknown"
STATE, RPC, REFUSED = "cf_agent_state", "rpc", "cf_agent_state_error"


class CallDesk:
    """The state and the calls of one connection.

    Args:
        told: the state that the client was told.
    """

    TYPES: Final = frozenset({STATE, RPC})

    def __init__(self, line: Line, reached: Reached, caller: CallerSide, state: WatchedState, told: Known) -> None:
        self._line, self._reached, self._caller, self._state = line, reached, caller, state
        self._told, self._shown = told.number, told.version
        """The number of what was looked at last, and the version that the client shows. Whatever the client sets it shows at once."""
        self._set, self._setting = told.edition, asyncio.Lock()
        """The edition of what the client has set last."""
        self._sent_at_s = asyncio.get_running_loop().time() if told.version else float("-inf")

    async def take(self, frame: JsonObject) -> None:
        """Do what a frame asks."""
        if frame["type"] == STATE:
            await self._set_state(frame.get("state"))
        elif _is_call(frame):
            await self._line.beside(self._call(frame))

    async def refuse(self, frame: JsonObject, why: str) -> None:
        """Refuse what a frame asks."""
        if frame["type"] == STATE:
            await self._line.send(REFUSED, error=why)
            await self._send_state()
        elif isinstance(frame.get("id"), str):
            await self._line.send(RPC, id=frame["id"], success=False, error=why)

    # the state

    async def serve(self) -> None:
        """Tell the client of every other state than the one that it shows, until the connection ends."""
        while True:
            known = await self._state.after(self._told)
            self._told = known.number
            async with self._setting:  # what is being set comes after what is known by now
                known = self._state.known
                if known.version != self._shown and not known.is_before(self._set):
                    await self._send_state()

    async def _send_state(self) -> None:
        known = self._state.known
        self._shown, self._sent_at_s = known.version, asyncio.get_running_loop().time()
        await self._line.send(STATE, state=known.state)

    async def _set_state(self, state: object) -> None:
        """The client shows its state already. If it is refused the client is told so, and then the state that counts."""
        async with self._setting:
            try:
                if isinstance(state, dict):
                    self._shown = version_of(pack_value("state", state))
                self._set = tuple(await self._caller.call("_perdure_set_state", state))
                if asyncio.get_running_loop().time() - self._sent_at_s < CROSSES_S:
                    self._shown = UNKNOWN  # what was sent may have crossed what the client has set, and stand there now
            except AgentUnreachable:
                raise
            except PerdureError as problem:
                await self._line.send(REFUSED, error=words_of(problem))
                await self._send_state()

    # calls

    async def _call(self, frame: dict[str, Any]) -> None:
        call_id, method = frame["id"], frame["method"]
        try:
            function = self._function(method)
            if isinstance(function, str):
                await self._line.send(RPC, id=call_id, success=False, error=function)
            elif gives_bit_by_bit(function):
                await self._stream(call_id, getattr(self._reached.handle, method)(*frame["args"]))
            else:
                result = await asked(getattr(self._reached.handle, method)(*frame["args"]))
                await self._line.send_text(encoded(RPC, id=call_id, success=True, done=True, result=result))
        except PerdureError as problem:
            await self._line.send(RPC, id=call_id, success=False, error=words_of(problem))
        except (TypeError, ValueError) as problem:  # the arguments do not fit, or the result has no JSON
            await self._line.send(RPC, id=call_id, success=False, error=str(problem))

    def _function(self, method: str) -> Any:
        """The exposed method of this name; or why there is none, in the words of the original."""
        agent_class: type[Agent] = self._reached.agent_class
        function = None if method.startswith("_") else getattr(agent_class, method, None)
        if function is None:
            return f"Method {method} does not exist"
        is_exposed = hasattr(function, "__perdure_exposed__") or hasattr(function, "__perdure_afar__")
        return function if is_exposed else f"Method {method} is not callable"

    async def _stream(self, call_id: str, given: AsyncGenerator[object, None]) -> None:
        """Tell what a generator of the agent gives. It goes on only when the client has taken what came."""
        async with aclosing(given) as values:
            async for value in values:
                await self._line.send_text(encoded(RPC, id=call_id, success=True, done=False, result=value))
        await self._line.send(RPC, id=call_id, success=True, done=True)


def _is_call(frame: JsonObject) -> bool:
    return (
        isinstance(frame.get("id"), str)
        and isinstance(frame.get("method"), str)
        and isinstance(frame.get("args"), list)
    )
