"""Launchers: what starts a run and the remote workers that its table `[hosts]` lists. None of them schedules anything itself."""
