"""Training: small models from scratch, and causal checkpoints turned into diffusion models."""
