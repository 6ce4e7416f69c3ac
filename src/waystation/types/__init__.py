"""Public types, stated once and used by server, client and command line."""
