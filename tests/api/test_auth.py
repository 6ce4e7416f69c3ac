"""Every route of a guarded server, asked with every kind of wrong key (S-08, S-09)."""
