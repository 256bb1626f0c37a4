"""Conversations of an episode: the tree of its model calls, token by token, and the reward of each call."""
