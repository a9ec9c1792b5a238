"""The HTTP server: OpenAI's and Mercury's routes over the engine."""
