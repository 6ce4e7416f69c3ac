"""Store keys of a topic definition. `logs/keys.py` has the keys of the messages."""

from __future__ import annotations


def definition_key(project: str, name: str) -> str:
    """Return the key of the cached definition. It is a hash with the JSON in field `body`."""
    return f"{{t.{project}.{name}}}:topic"
