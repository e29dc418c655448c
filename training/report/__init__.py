"""Reports on runs, and the page of a discovery. Read the files in this order:

1. `runs`            run folders -> records, groups of runs that differ in the seed, sweeps of one setting
2. `measures`        the numbers of a run, and mean ± std over seeds
3. `drawing`         style of all figures, and a figure as SVG with its caption
4. `verdict`         what EAGC changes: paired differences to the fair baseline, in words and drawn
5. `figures`         figures from the logs of runs: curves, energies, losses
6. `weights`         values from the weights of runs on their data: energies, spectrum, features, attention
7. `weight_figures`  figures of these values
8. `probe`           a probe of labelled features, as text and as a part of the page
9. `page`            everything in one HTML page, from the templates in `templates/`

`discovered` stands alone: the page about images that nobody had labelled, from the files of `eagc discover`.
"""
