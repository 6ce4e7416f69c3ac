"""Who may do what: projects, API keys with scopes, and the gate that checks them."""

from __future__ import annotations

from waystation.access.gate import Access, Gate
from waystation.access.keys import Scope, new_key

__all__ = ["Access", "Gate", "Scope", "new_key"]
