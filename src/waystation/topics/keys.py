"""Names of the keys of a topic; those of its messages belong to its logs."""

from __future__ import annotations


def definition_key(project: str, name: str) -> str:
    """Return the key of the cached definition, a hash with the JSON in field `body`."""
    return f"{{t.{project}.{name}}}:topic"
