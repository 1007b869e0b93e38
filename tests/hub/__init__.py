"""Tests of `vtool.hub`."""
