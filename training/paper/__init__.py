"""The paper's tables, filled in by runs. Read the files in this order:

1. `values`    the numbers that the paper prints
2. `tables`    rows, column groups and recipes of every table; the runs they need (`plan`)
3. `planning`  an order for a table, and what is left of it to train
4. `filling`   train what is left, and record it
5. `filled`    what an output folder holds of a table
6. `page`      the table beside the paper's values, as Markdown and as HTML
"""
