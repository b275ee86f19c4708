"""The words by which a turn ends in an error: the author hears of every error, once, and may choose what people read.

Whether the author's own code raised it, the provider refused, or patience is gone, it comes through here before it is written into the
turn's row, so what is shown, what is stored and what `attach` tells later are the same words.
"""

from __future__ import annotations

from perdure.actors.chat.conversation_state import Floor
from perdure.actors.chat.outcome import Outcome
from perdure.actors.chat.turn import Turn
from perdure.actors.code.author_call import tried
from perdure.policies import TurnEvent


async def worded(floor: Floor, turn: Turn, outcome: Outcome) -> Outcome:
    """The outcome as people will read it. Of an error the author is told first, and a text that he returns takes its place."""
    if outcome.event is not TurnEvent.FAILED:
        return outcome
    agent, tenant = floor.agent, floor.tenant
    info = {"request_id": turn.request_id, "stage": outcome.stage, "reason": outcome.reason}
    shown, problem = await tried(tenant.call(agent.on_chat_error, outcome.error, info))
    if problem is not None:
        tenant.trouble("on_chat_error", problem)
    if isinstance(shown, str) and shown.strip():
        outcome = outcome._replace(error=shown)
    if outcome.stage != "recovery":  # of the end of a recovery its own events tell
        told = {"stage": outcome.stage, "reason": outcome.reason, "error": outcome.error}
        floor.emit("chat:request:failed", turn, told)
    return outcome
