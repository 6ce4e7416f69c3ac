"""Names of the keys of a topic; those of its messages belong to its logs."""

from __future__ import annotations


def definition_key(project: str, name: str) -> str:
    """Return the key of the cached definition, a hash whose field `body` is the JSON."""
    return f"{{t.{project}.{name}}}:topic"
