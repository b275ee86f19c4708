"""The journal as numbered objects in a bucket."""
