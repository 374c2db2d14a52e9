# SPDX-License-Identifier: Apache-2.0
"""Adapters to frameworks: ares, inspect_ai, mini_swe_agent, rllm, trl and verl.

Each module imports its framework by itself; rollbox needs none of them. docs/how-to/integrations.md
describes them.
"""
