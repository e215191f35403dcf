"""Which savepoints are worth a place: each retention policy one a file, metadata only."""
