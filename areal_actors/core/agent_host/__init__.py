"""Loads an agent, calls it, and serves its episodes one after the other in a process of its own.

This package needs only the standard library and Python 3.9, and its modules import one another relatively: an agent may
use an interpreter without our packages, which loads this folder by its path.
"""
