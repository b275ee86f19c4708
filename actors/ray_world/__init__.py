"""The real world: Ray, processes that die, and the clock of the machine. Ray is imported here and nowhere else."""
