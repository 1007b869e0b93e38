"""What `vtool verify RECIPE` proves of a run, each by a computation of its own."""
