"""Reports on runs. Read the files in this order:

1. `runs`            run folders -> records, groups of runs that differ in the seed, sweeps of one setting
2. `measures`        the numbers of a run, and mean ± std over seeds
3. `drawing`         style of all figures, and a figure as SVG with its caption
4. `verdict`         what EAGC changes: paired differences to the fair baseline, in words and drawn
5. `figures`         figures from the logs of runs: curves, energies, losses
6. `page`            everything in one HTML page, from the templates in `templates/`

What needs data and weights of runs beside their folders is drawn by `evidence/weight_figures.py`.
"""
