"""One life of one agent: its transactions, mail, runs and steps. It knows nothing of chats, jobs or hosts."""
