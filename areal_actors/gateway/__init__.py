"""The HTTP server that agents call, and the handling of one model call from prompt to answer."""
