"""An endpoint that is broken for its first four requests, and then is repaired.

Run it in a terminal of its own: `python endpoint.py`, or with another port than 9000 behind that.
It prints what it takes, in the order in which it takes it.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Hook(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    broken = 4

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status = 500 if Hook.broken else 200
        Hook.broken = max(0, Hook.broken - 1)
        if status == 200:
            print(self.headers["waystation-group"], body, flush=True)
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing of what it refuses."""


HTTPServer(("127.0.0.1", int(sys.argv[1]) if sys.argv[1:] else 9000), Hook).serve_forever()
