"""The metrics that go to a collector: their names there, their units, and the bounds of their histograms.

Names and bounds of those that begin with `gen_ai` are those of OpenTelemetry's conventions.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MODEL_TOKENS, MODEL_REQUEST_MS = "model_tokens", "model_request_ms"


class Instrument(NamedTuple):
    """A metric at the collector. `scale` is what a value is multiplied by; `tags` are the names of its attributes there."""

    name: str
    unit: str
    description: str
    scale: float = 1
    bounds: tuple[float, ...] = ()


_TOKENS: Final = tuple(float(4**power) for power in range(14))
_SECONDS: Final = tuple(round(0.01 * 2**power, 2) for power in range(14))
_MS: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_000.0, 10_000.0, 30_000.0, 100_000.0)

INSTRUMENTS: Final = {
    MODEL_TOKENS: Instrument("gen_ai.client.token.usage", "{token}", "Tokens of requests to models.", bounds=_TOKENS),
    MODEL_REQUEST_MS: Instrument(
        "gen_ai.client.operation.duration", "s", "How long requests to models took.", 0.001, _SECONDS
    ),
    "commit_ms": Instrument(
        "perdure.commit.duration", "ms", "How long it took to make a group of facts durable.", bounds=_MS
    ),
    "runs_ended": Instrument("perdure.runs.ended", "{run}", "Ends of runs, by their status."),
    "recoveries": Instrument("perdure.recoveries", "{attempt}", "Attempts at runs after the first one."),
    "runs": Instrument("perdure.runs", "{run}", "The runs that the ledger has, by their status."),
    "runs_live": Instrument("perdure.runs.live", "{run}", "Runs that have not ended."),
    "runs_waiting": Instrument("perdure.runs.waiting", "{run}", "Runs that wait for a host."),
    "hosts_up": Instrument("perdure.hosts.up", "{host}", "Hosts at work."),
    "agents_awake": Instrument("perdure.agents.awake", "{agent}", "Agents in memory."),
    "facts": Instrument("perdure.facts", "{fact}", "Facts in the ledger since its beginning."),
    "mail": Instrument("perdure.mail", "{mail}", "Mail since the ledger's beginning, by what became of it."),
}
"""By their names in the port `Metrics`."""
