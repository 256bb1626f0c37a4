"""The HTTP server through which agents reach the model, and one model call from prompt to answer."""
