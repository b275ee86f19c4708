"""How the supervisor and its peers talk: messages, their numbering and repetition, and who waits for an answer."""
