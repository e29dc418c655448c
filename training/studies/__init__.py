"""Studies: sets of runs, with a summary and conclusions."""
