"""Turns a folder of runs into tables, figures and claims. Does not import torch.

`cells.read_results(store)` is the entry point; the other modules draw or write its results.
"""
