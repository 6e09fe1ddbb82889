"""What to repel (features), how (objectives), and how hard (guide)."""
