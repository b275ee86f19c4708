"""The laboratory: a simulated world for tests, with the invariants checked all the way."""
