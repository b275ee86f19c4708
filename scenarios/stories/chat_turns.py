"""A client that asks a question, follows the answer through every interruption, and keeps all events."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.actors import TurnResult
from perdure.ledger import PerdureError
from perdure.scenarios.cast.guide import Guide
from perdure.scenarios.stories.stage import Stage

ATTACHES_MAX: Final = 50


class Listener:
    """A callback that keeps the events and the ends, of which there must be one."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.ends: list[str] = []
        self.cause = ""

    def on_event(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def on_done(self) -> None:
        self.ends.append("done")

    def on_error(self, text: str) -> None:
        self.ends.append("error")

    def on_interrupted(self, info: Any) -> None:
        """The attempt has ended, and the turn may go on."""
        self.ends.append("interrupted")
        self.cause = info.cause


@dataclass
class Told:
    """One question as its client saw it. `problem` was raised instead of a result."""

    number: int
    result: TurnResult | None = None
    listeners: list[Listener] = field(default_factory=list)
    problem: str = ""

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of all listeners."""
        return [event for listener in self.listeners for event in listener.events]

    @property
    def interruptions(self) -> Counter[str]:
        return Counter(listener.cause for listener in self.listeners if listener.cause)

    @property
    def recoveries(self) -> int:
        """Silently recovered connections, and attempts after the first."""
        silent = len([event for event in self.events if "recovery" in (event.get("data") or {})])
        return silent + len([event for event in self.events if event["type"] == "data-attempt"])


async def ask(stage: Stage, name: str, number: int, text: str, **options: Any) -> Told:
    """Ask a guide, and attach again whenever an attempt ends before the turn."""
    told = Told(number, listeners=[Listener()])
    request_id = f"{name}-asked"
    try:
        result = await stage.call(Guide, name, "chat", text, told.listeners[-1], request_id=request_id, **options)
        while result.status == "interrupted" and len(told.listeners) < ATTACHES_MAX:
            told.listeners.append(Listener())
            result = await stage.call(Guide, name, "attach", request_id, told.listeners[-1], first=result.next_event)
        told.result = result
    except PerdureError as problem:
        told.problem = f"{type(problem).__name__}: {problem}"
    return told
