#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A scripted agent and an environment's server in a sandbox. Needs openenv; no model and no GPU.

The server is in a sandbox of RollboxProvider: the agent guesses its number by halving.
"""

from __future__ import annotations

import json
import sys
import urllib.request

from rollbox.integrations.openenv import RollboxProvider

SERVER = """
import http.server, json

class Guess(http.server.BaseHTTPRequestHandler):
    def answer(self, data):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(data).encode())

    def do_GET(self):
        self.answer({"status": "healthy"})

    def do_POST(self):
        action = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        guess = action.get("guess", 0)
        self.answer({"sign": (37 > guess) - (37 < guess), "reward": float(guess == 37)})

http.server.HTTPServer(("127.0.0.1", 8000), Guess).serve_forever()
"""


def step(url: str, guess: int) -> dict[str, float]:
    body = json.dumps({"guess": guess}).encode()
    with urllib.request.urlopen(url + "/step", data=body, timeout=30) as answer:
        found: dict[str, float] = json.load(answer)
    return found


def main() -> int:
    provider = RollboxProvider(images={"guess": "host"}, labels={"example": "openenv"})
    with provider:
        url = provider.start_container("guess", cmd=["python3", "-c", SERVER])
        provider.wait_for_ready(url)
        low, high, reward = 0, 100, 0.0
        while reward == 0 and low <= high:
            guess = (low + high) // 2
            seen = step(url, guess)
            reward = seen["reward"]
            low, high = (guess + 1, high) if seen["sign"] > 0 else (low, guess - 1)
    print("reward:", reward)
    return 0 if reward == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
