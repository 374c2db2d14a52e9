# SPDX-License-Identifier: Apache-2.0
"""SandboxFusion's requests by verl's own code, for serving.py, in a Python that has verl:

    fusion_client.py URL THREADS SECONDS    prints {"n": requests, "s", "p50_ms", "p99_ms", "wrong"}

Only verl's part for SandboxFusion is loaded: all of verl needs torch.
"""

import importlib.util
import json
import logging
import sys
import threading
import time
from pathlib import Path

CODE = "print(sum(range(1000)))"
ANSWER = "499500\n"


def load():
    found = importlib.util.find_spec("verl")
    base = Path(found.submodule_search_locations[0]) / "utils/reward_score/sandbox_fusion"
    spec = importlib.util.spec_from_file_location("verl_fusion", base / "utils.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main():
    url, threads, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    logging.disable(logging.CRITICAL)
    verl = load()
    times, wrong, lock = [], [0], threading.Lock()
    end = time.monotonic() + seconds

    def work():
        while time.monotonic() < end:
            begun = time.perf_counter()
            answer, _ = verl.call_sandbox_api(url, CODE, None, 10, 10, 1024, "python")
            took = time.perf_counter() - begun
            right = answer and (answer.get("run_result") or {}).get("stdout") == ANSWER
            with lock:
                times.append(took)
                wrong[0] += not right

    begun = time.perf_counter()
    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    took = time.perf_counter() - begun
    times.sort()
    row = {"n": len(times), "s": took, "wrong": wrong[0]}
    row["p50_ms"] = times[len(times) // 2] * 1000
    row["p99_ms"] = times[min(len(times) - 1, len(times) * 99 // 100)] * 1000
    print(json.dumps(row))


if __name__ == "__main__":
    main()
