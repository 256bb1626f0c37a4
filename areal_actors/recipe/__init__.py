"""A recipe: its tables, how it is read and checked, and what it would do."""
