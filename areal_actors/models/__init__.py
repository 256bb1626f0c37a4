"""Brings models to this machine.

From a hub, from a package, from a GGUF file; and checks that a folder has what a run needs.
"""
