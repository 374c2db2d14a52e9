# SPDX-License-Identifier: Apache-2.0
"""Adapters to frameworks: ares, rllm and inspect_ai. Each module imports its framework by itself; none is needed by rollbox. docs/integrations.md."""
