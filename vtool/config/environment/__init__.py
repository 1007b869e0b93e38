"""Checks of a machine's environment, without torch: variables, versions, CANN's files."""
