"""The scenarios of `perdure run`: what is played, what is killed, and what must come of it."""
