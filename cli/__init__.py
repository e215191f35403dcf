"""Top floor: one command a file, and what turns values into tables. Measures nothing itself."""
