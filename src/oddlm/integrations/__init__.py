"""Doors into libraries that run diffusion language models themselves."""
