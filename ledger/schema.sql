-- The ledger's file. Keys are kept by the fold above it, so there are primary keys only where a lookup by key must not scan,
-- and no other index: an index besides the primary key is where DuckDB loses its way after a crash.
--
-- Bodies of which there are many are compressed by zstd. Left to choose, DuckDB tries a dictionary first, which makes a checkpoint of
-- many rows take five times as long and the file no smaller.

-- What happened, in order, for ever, until its run is forgotten. `seq` comes from the one writer, without holes.
CREATE TABLE facts (
    seq BIGINT,
    at_ms BIGINT,
    subject VARCHAR,
    frame INTEGER,
    kind VARCHAR,
    body BLOB USING COMPRESSION zstd
);

-- What many runs went through together: so many consecutive `facts` from number `seq` on, in columns (see `batches.py`).
-- Without a key, DuckDB would read the bodies of two thousand to find one; of compressed ones it would unpack as many.
CREATE TABLE batches (
    seq BIGINT PRIMARY KEY,
    at_ms BIGINT,
    facts BIGINT,
    kind VARCHAR,
    body BLOB USING COMPRESSION uncompressed
);

-- Inputs and outputs that are too large for their fact. `seq` is the fact that they belong to. Rows without one end a row group whose
-- bodies are many bytes (see `duckdb_tables.Inserter`).
CREATE TABLE payloads (run_id VARCHAR, part VARCHAR, body BLOB USING COMPRESSION zstd, seq BIGINT);

-- The snapshot: every record as it was at the last checkpoint. `body` is the whole record, the columns are for readers.
CREATE TABLE runs (
    run_id VARCHAR PRIMARY KEY,
    live BOOLEAN,
    status VARCHAR,
    agent_type VARCHAR,
    parent VARCHAR,
    requested_at_ms BIGINT,
    ended_at_ms BIGINT,
    first_seq BIGINT,
    last_seq BIGINT,
    body BLOB USING COMPRESSION zstd
);
CREATE TABLE agents (agent_id VARCHAR PRIMARY KEY, live BOOLEAN, host_id VARCHAR, incarnation BIGINT, body BLOB);
CREATE TABLE mail (mail_id VARCHAR PRIMARY KEY, live BOOLEAN, recipient VARCHAR, state VARCHAR, run_id VARCHAR, body BLOB);

-- What the facts up to the last checkpoint weigh, in stretches; forgetting a run takes its weight out (see `seals.py`).
CREATE TABLE seals (first_seq BIGINT, last_seq BIGINT, items BIGINT, total BLOB);

-- Which runs have a record, in pieces of a filter that is kept in memory (see `key_filter.py`). Of compressed ones, DuckDB would
-- unpack all that are before the one it reads.
CREATE TABLE run_filter (place INTEGER PRIMARY KEY, bits BLOB USING COMPRESSION uncompressed);

-- `snapshot` (the caller's), `mark` (up to where snapshot and seals reach), `key_filter_words` and `ended` (what they count).
CREATE TABLE meta (key VARCHAR, value BLOB);
