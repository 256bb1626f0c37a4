"""The web page of a run: an index of its log, a server that only reads, and static files."""
