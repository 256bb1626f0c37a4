"""Fully asynchronous reinforcement learning of language-model agents, as asyncio actors on one bus."""

__version__ = "0.1.0"
