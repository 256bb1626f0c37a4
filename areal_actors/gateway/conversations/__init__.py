"""The tree of an episode's conversations: contexts, continuations and prefix checks."""
