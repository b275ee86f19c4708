"""What ought to be done next, as data. Every effect is harmless to repeat, and names the life that it is meant for."""

from __future__ import annotations

from typing import Any, NamedTuple


class StartAttempt(NamedTuple):
    """Tell a host to carry an attempt."""

    host_id: str
    agent_id: str
    incarnation: int
    run_id: str
    attempt: int
    input: bytes | None
    collect: bool
    options: dict[str, Any]


class WakeAgent(NamedTuple):
    """Tell a host to bring an agent up."""

    host_id: str
    agent_id: str
    incarnation: int


class DeliverMail(NamedTuple):
    """Hand mails to an agent, in order. Each is `(mail id, slot, handler, run as plain data, outcome as plain data)`."""

    host_id: str
    agent_id: str
    incarnation: int
    mails: list[tuple[str, str, str, dict[str, Any], dict[str, Any]]]


class StopAgent(NamedTuple):
    """Tell a host to end an agent's work and let go of it."""

    host_id: str
    agent_id: str
    incarnation: int


class TellEnd(NamedTuple):
    """Tell whoever waits that a run has ended."""

    run_id: str


class ForgetStorage(NamedTuple):
    """Delete what a cleared run's child had stored; without a run, what a doomed agent and its descendants had."""

    run_id: str
    agent_id: str


Effect = StartAttempt | WakeAgent | DeliverMail | StopAgent | TellEnd | ForgetStorage
