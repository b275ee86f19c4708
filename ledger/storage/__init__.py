"""One agent's storage: its DuckDB file, its transactions, and our records beside the author's tables."""
