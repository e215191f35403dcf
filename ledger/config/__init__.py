"""From a YAML file to a config: read, checked and resolved, every problem with its place."""
