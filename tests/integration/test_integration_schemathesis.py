# SPDX-License-Identifier: Apache-2.0
"""Requests that schemathesis makes from the OpenAPI document: none ends in a failure of the server
(`make integrations`)."""

import subprocess
import sys
import tempfile
from pathlib import Path

from adapters import needs
from harness import BUILD, DEADLINE

# Streams without an end; and SWE-ReX's requests, whose exceptions have the status 511.
LEFT_OUT = (
    "stream|events|channel|tty|swerex|^/(create|run_in|close)_?session|^/(execute|close|upload)$"
    "|^/(read|write)_file$|/wake"
)


def test_no_request_from_the_document_fails_in_the_server():
    needs("schemathesis", "it makes the requests of this test")
    with tempfile.TemporaryDirectory() as directory:
        tokens, state = f"{directory}/tokens", Path(directory, "state")
        state.mkdir(0o700)
        words = ["token", "create", "--tokens", tokens, "--scope", "run", "--scope", "net"]
        token = subprocess.run(
            [BUILD / "rollbox", *words], capture_output=True, text=True, check=True
        ).stdout.strip()
        server = subprocess.Popen(
            [
                BUILD / "rollbox",
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--tokens",
                tokens,
                "--state",
                state,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            address = server.stdout.readline().strip().rpartition(" ")[2]
            while server.stdout.readline() not in ("ready\n", ""):
                pass
            done = subprocess.run(
                [
                    Path(sys.executable).with_name("schemathesis"),
                    "run",
                    f"{address}/v1/openapi.json",
                    "--header",
                    f"Authorization: Bearer {token}",
                    "--checks",
                    "not_a_server_error",
                    "--max-examples",
                    "10",
                    "--phases",
                    "examples,coverage,fuzzing",
                    "--seed",
                    "7",
                    "--exclude-path-regex",
                    LEFT_OUT,
                ],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            # It counts bodies that it cannot make, such as archives, as errors of its own.
            assert "Server error" not in done.stdout and "Test cases:" in done.stdout, done.stdout
            assert server.poll() is None
        finally:
            server.terminate()
            server.wait(DEADLINE)
            server.stdout.close()
