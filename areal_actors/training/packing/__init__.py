"""Micro-batches: shared prefixes, packed chains, attention and scoring of tokens."""
