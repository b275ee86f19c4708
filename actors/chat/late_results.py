"""Late results: a call was reported as lost, and then its run came to an end after all.

The transcript keeps the evidence with the call (`fates`). Before a turn begins, the ledger is asked about each such run; a result that has
come is added to the transcript as a correction, once, so that the model does not go on believing what is no longer so (case A17).
"""

from __future__ import annotations

import json
from typing import Any

from perdure.actors.chat.conversation_state import Floor
from perdure.actors.chat.store import Message
from perdure.ledger import HARD, Status
from perdure.policies import Remains, correction


async def late_results(floor: Floor) -> list[Message]:
    """The corrections that are due, as messages."""
    found = []
    for call_id, evidence in list(floor.transcript.uncertain.items()):
        message_id = f"correction-{evidence['runId']}"
        if message_id in floor.transcript:
            continue
        told = await floor.tenant.dispatch.inspect(evidence["runId"])
        if told is None or told["status"] not in HARD:
            continue
        floor.repeats.explained(call_id)
        if told["status"] == Status.COMPLETED:
            found.append(_correction(message_id, call_id, evidence, told))
    return found


def _correction(message_id: str, call_id: str, evidence: dict[str, Any], told: dict[str, Any]) -> Message:
    output = told.get("output")
    if isinstance(output, dict) and "ok" in output:
        output = output.get("output") if output["ok"] else output.get("error")
    text = output if isinstance(output, str) else json.dumps(output, ensure_ascii=False, default=str)
    words = correction(Remains(tool=evidence["tool"], call_id=call_id), text)
    metadata = {"source": "late-result", "runId": evidence["runId"]}
    return {"id": message_id, "role": "user", "parts": [{"type": "text", "text": words}], "metadata": metadata}
