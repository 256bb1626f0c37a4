"""Launchers: what starts a run and the workers of other hosts that `[hosts]` lists.

None of them schedules anything itself.
"""
