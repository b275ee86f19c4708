"""The protocol of the npm packages `agents` and `@cloudflare/ai-chat`."""
