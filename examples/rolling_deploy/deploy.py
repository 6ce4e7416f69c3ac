"""A relay, two workers, and a rolling deploy under load: every envelope arrives, in its order.

Run `waystation dev` in one terminal and `waystation relay` in another first, both in this folder.
Workers of version 1 are replaced one after the other while envelopes come in at the relay.
"""

import base64
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path

from waystation import Waystation

RELAY = os.environ.get("RELAY_URL", "http://127.0.0.1:8071/")
KEYS, EACH = 20, 30
ws = Waystation()


def send(key: str, text: str) -> None:
    """Sends an envelope as an agent does; when the relay says 200, it is durable."""
    recipients = [{"encrypted_key": "…", "header": {"kid": key}}]
    protected = json.dumps({"typ": "JWM/1.0", "recipients": recipients}).encode()
    packed = base64.urlsafe_b64encode(protected).decode()
    body = json.dumps({"protected": packed, "ciphertext": text}).encode()
    urllib.request.urlopen(RELAY, body, timeout=30).close()  # noqa: S310 (our own relay)


def send_all() -> None:
    for number in range(EACH):
        for key in range(KEYS):
            send(f"did:key:{key}", str(number))


def start(name: str) -> subprocess.Popen[bytes]:
    """A worker comes; returns when it gets keys."""
    process = subprocess.Popen([sys.executable, "worker.py", name])  # noqa: S603 (our own)
    while name not in [each.uid for each in ws.pools.workers("agents").workers]:
        time.sleep(0.05)
    return process


Path("handled.txt").unlink(missing_ok=True)
workers = {name: start(name) for name in ("red-1", "blue-1")}
load = threading.Thread(target=send_all)
load.start()
for name in ("red", "blue"):
    time.sleep(0.5)
    workers[f"{name}-2"] = start(f"{name}-2")  # The new one first, …
    old = workers.pop(f"{name}-1")
    old.send_signal(signal.SIGTERM)  # … then the old one goes, and its keys with it.
    assert old.wait(30) == 0
load.join()
while ws.pools.workers("agents").pending:
    time.sleep(0.05)
owners = Counter(each.owner for each in ws.pools.map("agents"))
for process in workers.values():
    process.send_signal(signal.SIGTERM)
    process.wait(30)

handled = defaultdict(list)
for line in Path("handled.txt").read_text().splitlines():
    key, number, _ = line.split()
    handled[key].append(int(number))
print("sent:", KEYS * EACH, "handled:", sum(map(len, handled.values())))
print("keys in order:", sum(numbers == list(range(EACH)) for numbers in handled.values()))
print("keys after the deploy:", sorted(owners))
