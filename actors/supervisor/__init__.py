"""The supervisor: the one process that decides what must survive, and what it does about it."""
