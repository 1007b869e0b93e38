"""Engines: what makes a model train on devices."""
