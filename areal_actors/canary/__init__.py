"""A candidate beside the served weights: sessions by share, an always-valid comparison, promotion and rollback."""
