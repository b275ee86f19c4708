"""Looking after a directory: the ledger and the storages compared, copied, and brought back."""
