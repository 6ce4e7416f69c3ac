"""The environment of the plugin's own relay and deliverer, as defaults of ours.

So a set-up that ran those runs ours: settings of Waystation, wherever they come from, are stronger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from waystation.errors import SettingsError

_STATUS = ("HOST", "PORT", "API_KEY")


def plugin_defaults(
    environment: Mapping[str, str], section: Literal["relay", "deliverer"]
) -> dict[str, Any]:
    """Settings by their names; empty where the plugin's names are not set."""
    found: dict[str, Any] = {}
    if url := environment.get("REDIS_SERVER_URL"):
        found["store.url"] = url
    if section == "relay" and (doors := environment.get("INBOUND_TRANSPORT_CONFIG")):
        found["relay.doors"] = _doors(doors)
        # Whoever ran the plugin's relay has the plugin's agents.
        found["relay.mirror"] = True
    if prefix := environment.get("TOPIC_PREFIX"):
        found[f"{section}.topic_prefix"] = prefix
    status = {name: environment.get(f"STATUS_ENDPOINT_{name}", "") for name in _STATUS}
    if all(status.values()):
        # All three, or there is no status door: as with the plugin.
        found |= {f"{section}.status_{name.lower()}": text for name, text in status.items()}
    return found


def _doors(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise SettingsError(f"INBOUND_TRANSPORT_CONFIG is no JSON: {error}.") from error
