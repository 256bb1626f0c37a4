"""Micro-batches: shared prefixes, packed branches, attention and scoring of tokens."""
