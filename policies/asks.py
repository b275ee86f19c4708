"""Who may answer a question that a run asks of people, and when it is answered. Pure.

A question goes to groups, one after the other: whoever was asked once may answer until it is closed. Each answer of a person is a vote.

| what | rule |
|---|---|
| nobody is named | everybody may answer |
| groups or people are named | one who has such a name, or is in such a group, of those to whom it has come by now |
| an operator of the directory | may answer everything, and is recorded |
| an administrator of a gateway | as if in every group |
| whoever began the run | may not, unless that was allowed |
| one person is asked for | the first answer closes it |
| `people` are asked for | so many different people who say the same close it; the latest word of each counts |
| one says no to a yes/no question | that closes it at once, whoever else was asked for |
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple


# One who answers. An operator has the directory itself; an administrator is one of a gateway.
class Answerer(NamedTuple):
    name: str
    groups: Collection[str] = ()
    is_operator: bool = False
    is_admin: bool = False


# What one person has said, as encoded: the answer, and the arguments if they were edited.
class Vote(NamedTuple):
    who: str
    value: bytes
    edited: bytes | None = None


def answer_refusal(who: Answerer, asked_of: Collection[str], began_by: str, *, self_answer: bool) -> str:
    """Why this one may not answer, in words; empty if it may."""
    if who.is_operator:
        return ""
    if began_by and who.name == began_by and not self_answer:
        return f"{who.name} began the run, and somebody else is to answer what it asks"
    if not asked_of or who.is_admin or not {who.name, *who.groups}.isdisjoint(asked_of):
        return ""
    return f"{who.name} is not asked; {_listed(asked_of)} may answer"


def _listed(names: Collection[str]) -> str:
    *first, last = sorted(names)
    return f"{', '.join(first)} or {last}" if first else last


def with_vote(votes: Sequence[Vote], vote: Vote) -> list[Vote]:
    # The latest word of each person counts.
    return [*(each for each in votes if each.who != vote.who), vote]


def is_decided(votes: Sequence[Vote], people: int, no: bytes | None) -> bool:
    """Whether the latest vote closes the question. `no` is the answer of which one is enough; None if there is none such."""
    latest = votes[-1]
    return latest.value == no or sum(each[1:] == latest[1:] for each in votes) >= people
