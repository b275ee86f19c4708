"""Many seeded plays in the simulated world: the swarm, the explorer, and the stories that they play."""
