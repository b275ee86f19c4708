"""The protocol of the AI SDK's `useChat`."""
