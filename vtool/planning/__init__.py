"""The needs of a run on each rank, computed without its weights, its rows or a GPU."""
