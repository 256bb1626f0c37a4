"""The commands, each described by its file; see `cli.command`."""
