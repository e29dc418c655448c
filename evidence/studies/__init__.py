"""Studies: sets of runs, with a summary and conclusions.

`demo`      SimGCD with and without EAGC on a small data set, in minutes
`questions` what the studies ask, the outcome and the test, written down before the runs
`study`     the runs that answer it
`plan`      how many of them are left, and their time
`running`   train those
`evidence`  what they show, as Markdown with figures
`numbers`   the table of all runs beside it
`earlier`   evidence of a part of the study whose runs are elsewhere
"""
