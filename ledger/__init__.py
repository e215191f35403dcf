"""First floor: keeps what the probes measured. Knows no terminal."""
