"""What a chat's run asks of a person, as elicitations of an MCP task, and the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from perdure.actors.gateway.backend import Backend, asked
from perdure.actors.life.handle import Handle
from perdure.actors.mcp_server.offers import Offer
from perdure.actors.mcp_server.runs import McpRuns
from perdure.ledger import BadRequest
from perdure.policies import JsonObject, Part, TurnStatus, awaits_client, tool_name

APPROVAL: Final[JsonObject] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}},
    "required": ["approved"],
}
RESULT: Final[JsonObject] = {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}


class Questions:
    """The questions of chats that are runs: the conversation of such a run has the run's id as its name."""

    def __init__(self, backend: Backend, runs: McpRuns) -> None:
        self._backend, self._runs = backend, runs

    async def open(self, offer: Offer, known: Mapping[str, object]) -> JsonObject:
        """The elicitations that wait, by the ids of their calls; ids are never used again."""
        return {call_id: elicitation(part) for call_id, part in (await self._waiting(offer, known)).items()}

    async def answer(self, offer: Offer, known: Mapping[str, object], said: Mapping[str, object]) -> None:
        """Answer some of them. What waits for nothing is ignored: the first answer counts. Raises `BadRequest` for an ill-formed one."""
        waiting = await self._waiting(offer, known) if offer.is_chat else {}
        handle = await self._chat(offer, known)
        for call_id, response in said.items():
            if not isinstance(response, Mapping) or response.get("action") not in ("accept", "decline", "cancel"):
                raise BadRequest("inputResponses", f"the answer to {call_id!r:.100} has no action")
            if call_id not in waiting:
                continue
            content, is_yes = response.get("content") or {}, response["action"] == "accept"
            if waiting[call_id].get("state") == "approval-requested":
                approved = is_yes and content.get("approved", True) is True
                await asked(handle.respond_to_approval(call_id, approved))
            elif is_yes:
                await asked(handle.resolve_tool_call(call_id, content.get("result", content)))
            else:
                await asked(handle.resolve_tool_call(call_id, error="The user did not answer."))

    async def _waiting(self, offer: Offer, known: Mapping[str, object]) -> dict[str, Part]:
        handle = await self._chat(offer, known)
        turn = await asked(handle.inspect_turn(known["run_id"]))
        if turn is None or turn["status"] != TurnStatus.PARKED:
            return {}
        parts = [part for message in await asked(handle.get_messages()) for part in message["parts"]]
        names = frozenset(tool_name(part) for part in parts if "toolCallId" in part)
        return {str(part["toolCallId"]): part for part in parts if awaits_client(part, names)}

    async def _chat(self, offer: Offer, known: Mapping[str, object]) -> Handle:
        client = await self._backend.client()
        return cast("Handle", client.agent(offer.agent_class, str(known["run_id"])))


def elicitation(part: Part) -> JsonObject:
    """The question of a call."""
    is_approval = part.get("state") == "approval-requested"
    name = tool_name(part)
    words = f"May {name} be called with {part.get('input')}?" if is_approval else f"{name}: {part.get('input')}"
    params: JsonObject = {"mode": "form", "message": words, "requestedSchema": APPROVAL if is_approval else RESULT}
    return {"method": "elicitation/create", "params": params}
