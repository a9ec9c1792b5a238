"""Reinforcement learning: answers that the model writes, what they are rewarded with, and how likely they become."""
