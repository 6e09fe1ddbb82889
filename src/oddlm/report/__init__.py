"""From a folder of runs to tables, figures and claims. Reads the store and the metrics, never
torch.

`cells.read_results(store)` is the door: everything else here draws or writes what it gives.
"""
