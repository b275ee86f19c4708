"""One ASGI application of all protocols, and the server that `perdure serve` starts."""
