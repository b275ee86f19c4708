"""Messengers: chat agents that people talk to where they are. Webhooks in, answers with edits out, each accepted message answered once.

No library of a provider is imported before one of its adapters is made.
"""
