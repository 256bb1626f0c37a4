"""For programs: workflows, tools of agents, and controllers of a hand-written training loop."""
