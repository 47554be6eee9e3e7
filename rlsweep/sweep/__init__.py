"""Axes of a recipe, and the runs they make."""
