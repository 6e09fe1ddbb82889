"""Repulsion: what is compared (features), what is maximized (objectives), how strongly (alpha)."""
