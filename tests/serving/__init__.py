"""Tests of `vtool.serving`."""
