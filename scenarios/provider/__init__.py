"""A scripted model provider: a process that speaks the protocol of chat completions, with faults on demand."""
