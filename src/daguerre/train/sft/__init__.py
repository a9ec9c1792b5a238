"""Supervised fine-tuning: answers to prompts, in any context that trains."""
