"""The audit of a run from its log alone."""
