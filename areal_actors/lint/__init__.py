"""Causes for which a run may not learn, in sentences, from its first batch."""
