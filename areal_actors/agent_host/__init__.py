"""Finds an agent, calls it, and serves it episode after episode in a process of its own.

Nothing here needs more than the standard library and Python 3.9, and modules import one another relatively: an agent may
bring an interpreter in which nothing of ours is installed, and that one loads this folder by its path.
"""
