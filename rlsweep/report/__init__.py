"""The report of a sweep: tables, plots, HTML, Markdown, JSON, and what they say in words."""
