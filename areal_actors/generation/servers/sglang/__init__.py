"""SGLang: its description, and the requests of its server."""
