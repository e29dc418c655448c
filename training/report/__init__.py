"""Reports on runs. Read the files in this order:

1. `runs`            run folders -> records, groups of runs that differ in the seed, sweeps of one setting
2. `measures`        the numbers of a run, and mean ± std over seeds
3. `drawing`         style of all figures, and a figure as SVG with its caption
4. `figures`         figures of what the run folders hold: curves, energies, losses
5. `weights`         what the weights of a run show on its data: energies, spectrum, features, attention
6. `weight_figures`  figures of that
7. `page`            all of it in one HTML page, by the templates in `templates/`
"""
