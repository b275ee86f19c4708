"""What an agent does by itself, apart from runs: fibers, which are durable pieces of its own work, schedules, and the queue."""
