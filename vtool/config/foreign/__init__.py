"""Recipes of other trainers, read as ours."""
