"""How the memory of an engine's cards is shared out, worked out from a config."""
