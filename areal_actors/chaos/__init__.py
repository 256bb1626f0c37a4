"""Fault injection: `[chaos]` of a recipe kills, pauses, partitions and damages parts of its own run, on a seeded schedule."""
