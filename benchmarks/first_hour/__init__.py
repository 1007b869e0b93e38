"""The first hour on a GPU: what no CPU can measure, in one table. See `__main__`."""
