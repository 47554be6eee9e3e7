"""The recipe: its schema (a file a section), how it is read from YAML, and its key."""
