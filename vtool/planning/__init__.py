"""What a run will need of each rank, computed without its weights, its rows or a GPU."""
