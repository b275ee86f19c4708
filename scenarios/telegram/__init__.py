"""A pretended Telegram Bot API, as a process and as a simulated wire."""
