"""The names that AG-UI's clients give, in our words. Pure."""

from __future__ import annotations

from hashlib import blake2b


def turn_id(agent_id: str, run_id: str) -> str:
    """The id of the turn of a run. Clients make the ids of runs, so that of one agent's turn must not reach a run of another's."""
    return f"{run_id}.{blake2b(agent_id.encode(), digest_size=6).hexdigest()}"
