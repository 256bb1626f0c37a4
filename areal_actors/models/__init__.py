"""Brings models to this machine: from a hub, from a package, from a GGUF file; and checks that a folder has what a run needs."""
