# SPDX-License-Identifier: Apache-2.0
"""Adapters to frameworks, a module for each.

Each module imports its framework by itself; rollbox needs none of them. docs/how-to/integrations.md
describes them.
"""
