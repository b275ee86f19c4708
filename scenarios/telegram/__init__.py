"""A simulated Telegram Bot API, behind sockets and in the simulated world."""
