"""Rollouts of other programs as a log of this one, which the page, `show` and `what-if` read."""
