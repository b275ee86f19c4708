"""A host: the process in which agents live while they are active, and the lives in it."""
