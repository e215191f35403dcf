"""Ground floor: measures page-locked and pageable memory. Knows no accounts, no YAML and no terminal."""
