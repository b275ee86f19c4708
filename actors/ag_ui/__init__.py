"""AG-UI: front ends that run agents over it, told legally to the end of each run."""
