"""Where the points come from: a method's own recipe turned into that of EAGC, one switch at a time.

`arms` has the recipes and `question` what is asked, both written down before the runs; `draws` makes the
problem of a replicate, `plan` lists the runs, `running` trains them, and `evidence` writes what they show.
"""
