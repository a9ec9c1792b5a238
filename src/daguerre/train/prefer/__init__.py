"""Learning from preferences: of two answers to a prompt, one is to become likelier than the other."""
