"""Reinforcement learning of our own networks on tasks: GRPO with rollouts of any kind.

An update draws a group of samples for each of some problems, scores them, and makes the better ones
of each group likelier (GRPO: Shao et al. 2024, arXiv:2402.03300). Two choices have names: how the
likelihood of a sample is estimated (`estimators`), since a diffusion model has no cheap exact one,
and what is made of it (`losses`).
"""
