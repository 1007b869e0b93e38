"""The files that rows are in: each class finds rows once, and reads one by its number."""
