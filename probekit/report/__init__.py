"""A run as values, Markdown and pictures."""
