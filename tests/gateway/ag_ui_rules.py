"""What the client of AG-UI verifies (client protocols C.4), as a checker: feed it a run's events, and it raises `Broken`.

The rules were compared with the real `@ag-ui/client` in `test_ag_ui_client`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar


class Broken(AssertionError):
    """An event that the client would refuse."""


class Verifier:
    """The state of one stream."""

    SPANS: ClassVar[dict[str, tuple[str, str]]] = {
        "TEXT_MESSAGE": ("messageId", "text message"),
        "TOOL_CALL": ("toolCallId", "tool call"),
        "REASONING": ("messageId", "reasoning"),
        "REASONING_MESSAGE": ("messageId", "reasoning message"),
    }

    def __init__(self) -> None:
        self.open: dict[tuple[str, str], str | None] = {}
        self.steps: set[tuple[str | None, str]] = set()
        self.subagents: dict[str, bool] = {}  # whether it is under way
        self.owners: dict[tuple[str, str], str | None] = {}
        self.phase = "new"

    def take(self, event: dict[str, Any]) -> None:
        """The next event. Raises `Broken`."""
        kind = event["type"]
        self._check_nulls(event)
        self._check_place(kind)
        name, _, what = kind.rpartition("_")
        if kind == "TOOL_CALL_RESULT":
            self.owners["TEXT_MESSAGE", event["messageId"]] = event.get("subagentRunId")
        elif name in self.SPANS and what in ("START", "CONTENT", "ARGS", "END"):
            self._span(name, what, event)
        elif kind in ("STEP_STARTED", "STEP_FINISHED"):
            self._step(what, (event.get("subagentRunId"), event["stepName"]))
        elif kind.startswith("SUBAGENT_"):
            self._subagent(what, event)
        elif kind == "RUN_FINISHED":
            self._require(not self.open, f"RUN_FINISHED while {self.open} are open")
            self._require(not self.steps, f"RUN_FINISHED while {self.steps} are open")
            self._require(not any(self.subagents.values()), f"RUN_FINISHED while {self.subagents} are open")
            self.phase = "finished"
        elif kind == "RUN_ERROR":
            self.phase = "error"

    def _require(self, holds: bool, words: str) -> None:
        if not holds:
            raise Broken(words)

    def _check_nulls(self, event: dict[str, Any]) -> None:
        nulls = [name for name, value in event.items() if value is None and name not in ("value", "result", "snapshot")]
        self._require(not nulls, f"{event['type']} has null for {nulls}")

    def _check_place(self, kind: str) -> None:
        if self.phase == "new":
            self._require(kind in ("RUN_STARTED", "RUN_ERROR"), f"{kind} is the first event")
        if kind == "RUN_STARTED":
            self._require(self.phase != "running", "RUN_STARTED within a run")
            self.__init__()  # type: ignore[misc]
            self.phase = "running"
        elif self.phase == "finished":
            self._require(kind == "RUN_ERROR", f"{kind} after the end")
        else:
            self._require(self.phase != "error", f"{kind} after an error")

    def _span(self, name: str, what: str, event: dict[str, Any]) -> None:
        field, words = self.SPANS[name]
        key, tag = (name, event[field]), event.get("subagentRunId")
        if what == "START":
            self._require(key not in self.open, f"{words} {key[1]} is opened twice")
            owner = self.owners.setdefault(key, tag)
            parent = ("TEXT_MESSAGE", event.get("parentMessageId", ""))
            self._require(
                parent not in self.owners or self.owners[parent] == owner, f"{words} {key[1]} is not of its parent"
            )
            self.open[key] = tag
        else:
            self._require(key in self.open, f"{words} {key[1]} is not open")
        self._require(tag is None or self.owners[key] == tag, f"{words} {key[1]} belongs to {self.owners[key]}")
        if what == "END":
            del self.open[key]

    def _step(self, what: str, key: tuple[str | None, str]) -> None:
        self._require((key in self.steps) == (what == "FINISHED"), f"STEP_{what} of {key}, open are {self.steps}")
        self.steps ^= {key}

    def _subagent(self, what: str, event: dict[str, Any]) -> None:
        tag = event["subagentRunId"]
        if what == "STARTED":
            self._require(tag not in self.subagents, f"subagent {tag} is started twice")
            parent = event.get("parentSubagentRunId")
            self._require(parent is None or parent in self.subagents, f"subagent {parent} is unknown")
            self.subagents[tag] = True
        else:
            self._require(self.subagents.get(tag, False), f"subagent {tag} is not under way")
            self.subagents[tag] = False


def verify(events: Iterable[dict[str, Any]]) -> None:
    """A whole stream, which has to end by a terminal event. Raises `Broken`."""
    verifier = Verifier()
    for event in events:
        verifier.take(event)
    verifier._require(verifier.phase in ("finished", "error"), f"the stream ends while it is {verifier.phase}")  # noqa: SLF001 - its own
