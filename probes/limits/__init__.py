"""What bounds the memory that a host gives or lets be pinned: one source a file, and what may be raised of it."""
