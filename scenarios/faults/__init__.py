"""Processes that are killed on purpose: `perdure kill`, `chaos`, and the kills of `perdure run` and `soak`."""
