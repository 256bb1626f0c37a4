"""Fault injection on a seeded schedule.

`[chaos]` of a recipe kills, pauses, partitions and damages parts of its own run.
"""
