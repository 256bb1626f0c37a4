"""Mixtures of tasks: several sources, drawn by weight."""
