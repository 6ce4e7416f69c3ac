"""Messages, as all parts use them: envelope, limits, HTTP formats, CloudEvents and redaction."""
