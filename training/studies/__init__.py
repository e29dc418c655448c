"""Studies: sets of runs, with a summary and conclusions.

`demo`      SimGCD with and without EAGC on a small data set, in minutes
`study`     when EAGC helps: the outcome and the test, written down before the runs, and the plan
`running`   the runs of the study that are left
`evidence`  what they show, as Markdown with figures
"""
