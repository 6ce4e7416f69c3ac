"""Messages: envelope, limits, HTTP formats, CloudEvents and redaction, shared by all parts."""
