"""Defaults of exports, apart from what they read, so that a recipe's reader loads nothing more."""

from __future__ import annotations

LEAST_REWARD = 0.5
"""Smallest reward of a demonstration unless another is asked for; the bound of `accuracy` in evaluations."""
