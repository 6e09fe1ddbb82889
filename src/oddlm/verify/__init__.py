"""Whether a model here is the published one: its network, and a score beside the published score.

`published.toml` is the one table of published scores, settings and sources.
"""
