#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs Harbor's oracle agent on a task, in rollbox. Needs harbor; no model and no GPU.

    harbor_oracle.py [--task DIRECTORY] [--base IMAGE] [--jobs DIRECTORY]

The default task is examples/web_task, whose Dockerfile needs an image of the store with
busybox and a user alice.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

TASK = pathlib.Path(__file__).parent.parent / "web_task"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Runs Harbor's oracle agent on a task.")
    parser.add_argument("--task", default=str(TASK))
    parser.add_argument("--base", default="base", help="the ARG BASE of the task's Dockerfile")
    parser.add_argument("--jobs", help="the directory of Harbor's results")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    jobs = options.jobs or tempfile.mkdtemp(prefix="harbor-jobs-")
    words = [str(pathlib.Path(sys.executable).with_name("harbor")), "run", "--quiet"]
    words += ["--path", options.task, "--agent", "oracle", "--jobs-dir", jobs]
    words += ["--env", "rollbox.integrations.harbor:RollboxEnvironment"]
    words += ["--ek", "build_args=" + json.dumps({"BASE": options.base})]
    # Harbor's model library asks the network at import otherwise.
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", **os.environ}
    subprocess.run(words, env=environment, stdin=subprocess.DEVNULL, check=True)
    rewards = []
    for path in pathlib.Path(jobs).glob("*/*/result.json"):
        result = json.loads(path.read_text())
        if result["exception_info"] is not None:
            print(result["exception_info"]["exception_message"])
            return 1
        rewards.append(result["verifier_result"]["rewards"]["reward"])
    print("rewards:", rewards)
    return 0 if rewards and all(reward == 1 for reward in rewards) else 1


if __name__ == "__main__":
    sys.exit(main())
