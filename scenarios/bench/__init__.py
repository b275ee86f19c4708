"""`perdure bench`: the figures, their goals and their baselines."""
