"""What is told to a collector of OpenTelemetry: spans of turns, requests to models, tools and runs, metrics, and logs."""
