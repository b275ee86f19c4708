"""How the supervisor and its peers talk: messages, their numbering and repetition, and what waits for an answer."""
