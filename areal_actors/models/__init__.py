"""Brings models to this machine.

They come from a hub, a package or a GGUF file; their folders are checked for what a run needs.
"""
