"""What `perdure serve --demo` shows: agents that need nothing, neither a key nor a network."""
