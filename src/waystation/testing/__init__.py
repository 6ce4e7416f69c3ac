"""The test kit, public: a private store, a whole station, a time machine, crash points.

    def test_my_subscriber(station):                    # a pytest fixture, nothing to configure
        with Waystation(station.url) as client:
            client.channels.subscribe("orders", "me")
            station.advance(hours=2)                    # two hours later everywhere, at once
            ...

Everything here is real: a real Valkey in a temporary folder, real HTTP on a free loopback port.
"""

from __future__ import annotations

from waystation.testing.crash_points import CrashPoint, Moment, crash_points
from waystation.testing.endpoint import Answer, FakeEndpoint
from waystation.testing.servers import private_server
from waystation.testing.station import Station, serving

__all__ = [
    "Answer",
    "CrashPoint",
    "FakeEndpoint",
    "Moment",
    "Station",
    "crash_points",
    "private_server",
    "serving",
]
