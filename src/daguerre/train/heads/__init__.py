"""Training of concept heads for a frozen published model, on labeled Python."""
