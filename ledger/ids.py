"""Names of agents, runs and mail, and how they derive from one another.

A name that can be derived is never drawn at random: a parent that runs again after its death requests the same run ids, and a handler
that runs twice sends the same mail (spec W-26).
"""

from __future__ import annotations

from hashlib import blake2b
from urllib.parse import quote, unquote

from perdure.ledger.codec import pack
from perdure.ledger.errors import BadRequest


def agent_id(agent_type: str, name: str) -> str:
    """The address of an agent: `stdlib@perdure.census:Census`."""
    return f"{name}@{agent_type.replace('@', '%40')}"


def type_of(agent: str) -> str:
    return agent.rpartition("@")[2].replace("%40", "@")


def name_of(agent: str) -> str:
    """The name inside an address; for a child it is the id of its run."""
    return agent.rpartition("@")[0]


def origin_of(agent_type: str) -> str:
    """What the code of a type is sent with: its script, its cell, its top-level module; for a type with a name of its own, the name."""
    place = agent_type.rpartition(":")[0]
    if place == "name":
        return agent_type
    return place if place.startswith(("script:", "cell:")) else place.partition(".")[0] or agent_type


def sub_agent_id(parent: str, agent_type: str, name: str) -> str:
    """The address of a sub-agent: `stdlib@m:Census>shard 1@m:Shard`."""
    # Quoted, so that a name cannot look like a descent.
    return agent_id(agent_type, f"{parent}>{quote(name, safe=' /:')}")


def parent_of(agent: str) -> str:
    """The address of a sub-agent's parent; empty for an agent that has none."""
    parent = name_of(agent).rpartition(">")[0]
    return parent if ":" in type_of(parent) and name_of(parent) else ""


def root_of(agent: str) -> str:
    parent = parent_of(agent)
    return root_of(parent) if parent else agent


def path_of(agent: str) -> list[tuple[str, str]]:
    parent = parent_of(agent)
    if not parent:
        return [(type_of(agent), name_of(agent))]
    return [*path_of(parent), (type_of(agent), unquote(name_of(agent)[len(parent) + 1 :]))]


def is_within(agent: str, ancestor: str) -> bool:
    return agent == ancestor or agent.startswith(f"{ancestor}>")


def mail_id(run_id: str, slot: str, mark: int = 0) -> str:
    """The id of the one mail that a run can send from this slot."""
    # `mark` tells it from that of an earlier run with this id, which was cleared.
    return f"{run_id}!{slot}!{mark}" if mark else f"{run_id}!{slot}"


def digest_of(content: bytes) -> str:
    return blake2b(content, digest_size=12).hexdigest()


def request_of(message_id: str) -> str:
    """The id of the turn that a user's message asks for, so that the turn is found by the message."""
    return f"ui-{digest_of(pack(message_id))}"


def derived_run_id(origin: str, agent_type: str, digest: str, occurrence: int) -> str:
    """The id of a run that its author did not name: from where and what is requested, and how often it was requested before."""
    return blake2b(f"{origin}|{agent_type}|{digest}|{occurrence}".encode(), digest_size=10).hexdigest()


def check_id(field: str, value: object, most: int) -> str:
    """Return the id, or raise `BadRequest` unless it is a string of 1 to `most` characters: not blank, no NUL, no lone surrogate."""
    if not isinstance(value, str):
        raise BadRequest(field, f"{value!r} is not a string")
    if not value.strip():
        raise BadRequest(field, "is blank")
    if "\x00" in value:
        raise BadRequest(field, "contains a NUL character")
    if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
        raise BadRequest(field, "contains half of a surrogate pair, which is no character")
    if len(value) > most:
        raise BadRequest(field, f"has {len(value)} characters; the limit is {most}")
    return value
