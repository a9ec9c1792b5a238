"""Many requests at once: continuous batching over one backend."""
