"""State machines as tables: the effect of each event in each state.

A cell is a state, which is the next one; `IGNORED` for an echo, which changes nothing; or `ILLEGAL` for what only a bug of ours can cause.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from typing import Generic, TypeVar

State = TypeVar("State", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


class Cell(Enum):
    IGNORED = "ignored"
    ILLEGAL = "illegal"


# An event that our own code must never produce in this state.
class IllegalTransition(AssertionError):
    def __init__(self, subject: str, state: str, fact: str) -> None:
        super().__init__(subject, state, fact)
        self.subject, self.state, self.fact = subject, state, fact

    def __str__(self) -> str:
        return f"{self.fact} cannot happen to {self.subject} while it is {self.state}"


class Transitions(Generic[State, Event]):
    def __init__(self, states: Sequence[State], rows: Mapping[Event, Sequence[State | Cell]]) -> None:
        self._cells = {event: dict(zip(states, cells, strict=True)) for event, cells in rows.items()}

    def cell(self, state: State, event: Event) -> State | Cell:
        return self._cells[event][state]

    def next(self, state: State, event: Event, subject: str) -> State | None:
        """The state after the event, or None if the event is ignored. Raises `IllegalTransition`, which names the subject."""
        cell = self._cells[event][state]
        if cell is Cell.ILLEGAL:
            raise IllegalTransition(subject, state, event)
        return None if isinstance(cell, Cell) else cell
