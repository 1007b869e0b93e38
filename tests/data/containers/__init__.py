"""Tests of the files that rows are in."""
