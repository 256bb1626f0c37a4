"""Parsers of the reasoning and tool calls that model families write: one table of formats."""
