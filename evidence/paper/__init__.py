"""The paper's tables, filled in by runs. Read the files in this order:

1. `values`    the numbers that the paper prints
2. `tables`    rows, column groups and recipes of every table; the runs they need (`plan`)
3. `planning`  an order for a table: its runs, how many are finished, the cost of the others
4. `filling`   train the runs that are left, and record them
5. `filled`    the runs of a table in an output folder
6. `page`      our results beside the paper's values, as Markdown and as HTML
"""
