"""The simulated world: the same supervisor and hosts on virtual time, with faults from one seeded die."""
