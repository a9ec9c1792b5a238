"""A chat model beside its teacher: how far it is from it, and what its answers and fills are worth to it."""
