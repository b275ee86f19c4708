"""What an author sees: the class `Agent`, and its verbs for fibers, schedules and sub-agents."""
