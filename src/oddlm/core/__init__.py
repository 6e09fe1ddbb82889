"""A run as a value: `begin` makes it, `advance` takes one step; nothing here calls a network."""
