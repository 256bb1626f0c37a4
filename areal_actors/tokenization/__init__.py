"""Text to tokens and back, chat templates and tool parsers, without torch."""
