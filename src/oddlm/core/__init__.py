"""A run as a value: `begin` makes it, `advance` takes it one step on, and nobody here calls a
network.
"""
