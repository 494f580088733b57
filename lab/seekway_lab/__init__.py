"""The experiments of five papers: scenarios, Python and tables.

A study has scenarios (`scenarios`), which `runs` makes on Dask's workers and keeps on disk, and a
function that makes rows of their figures (`judge`, `declared`). `papers` has the studies of each
paper. `pages` makes the pages of docs/experiments from the rows and from what the papers claim.
"""
