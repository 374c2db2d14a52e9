# SPDX-License-Identifier: Apache-2.0
"""Adapters to frameworks: ares, harbor, inspect_ai, nemo_gym, openenv, rllm and verifiers.

Each module imports its framework by itself; rollbox needs none of them. docs/how-to/integrations.md
describes them.
"""
