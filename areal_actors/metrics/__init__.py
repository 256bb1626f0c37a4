"""Files written beside a run: metrics and the episode log."""
