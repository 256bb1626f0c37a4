"""Finds rewards that a policy has learned to collect without the task: what changed when reward rose."""
