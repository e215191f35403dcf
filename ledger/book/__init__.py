"""One book of what the processes of a host hold."""
