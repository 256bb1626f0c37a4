"""A recipe: its tables, reading, validation and dry run."""
