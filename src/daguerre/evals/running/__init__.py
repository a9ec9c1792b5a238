"""Code that runs: a part of a held-out function is written again, and the function's doctests say if it is right."""
