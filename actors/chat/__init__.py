"""Chat agents: messages, models, tools, and turns that survive whatever dies.

Nothing here imports a provider's library before a model is asked for the first time, so a host without a chat agent pays nothing.
"""
