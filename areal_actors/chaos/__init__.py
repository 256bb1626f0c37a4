"""Faults on purpose: `[chaos]` of a recipe kills, pauses, cuts off and damages parts of its own run, to a seeded schedule."""
