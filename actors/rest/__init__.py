"""What the command line can do, over HTTP with JSON, and its description."""
