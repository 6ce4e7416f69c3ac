"""The HTTP door. Thin: it translates, it does not decide."""
