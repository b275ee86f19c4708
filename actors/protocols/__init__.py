"""How others speak with agents: one module or more for each protocol, each with a function `routes(backend)`."""
