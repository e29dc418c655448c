"""Studies: sets of runs with their conclusions."""
