"""Parts of reinforcement learning that a recipe will use: estimates, loss, rewards. No command does yet."""
