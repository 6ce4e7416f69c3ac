"""Messages as all parts share them: envelope, limits, HTTP forms, CloudEvents, redaction."""
