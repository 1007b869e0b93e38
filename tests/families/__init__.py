"""Tests of vtool/families: what each model family has of its own."""
