"""Fewer steps, learned from a model's own trajectories: SDTT, pseudo-trajectories, and on-policy minimization."""
