"""Where facts are durable: the DuckDB file with its journal, and the same contract in memory."""
