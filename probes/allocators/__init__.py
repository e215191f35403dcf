"""Ways to get memory, one a file. `registry` knows their names, `allocator` says what each of them owes."""
