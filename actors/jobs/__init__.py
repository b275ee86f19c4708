"""Jobs that an agent owns: fibers, which are durable pieces of its own work."""
