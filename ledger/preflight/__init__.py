"""Whether a host lets a config's tenants have what they need, source by source, before a byte is taken."""
