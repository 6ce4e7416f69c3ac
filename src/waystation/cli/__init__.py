"""The command line. Thin: it translates, it does not decide."""
