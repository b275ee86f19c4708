"""One agent's storage: its log or its DuckDB database, its transactions, and our records beside the author's tables."""
