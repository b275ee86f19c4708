"""A client of a gateway for Python programs elsewhere: over HTTP, without Ray and without a database."""
