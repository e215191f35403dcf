"""What a retention policy would have kept: requests of a trace or of a generated drive, replayed without memory."""
