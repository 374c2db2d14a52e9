# SPDX-License-Identifier: Apache-2.0
"""Adapters to frameworks: ares, rllm and inspect_ai.

Each module imports its framework by itself; rollbox needs none of them. docs/how-to/integrations.md
describes them.
"""
