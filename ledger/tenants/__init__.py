"""What holds memory in the ledger: each kind of tenant, one a file."""
