"""Training of a draft head for a frozen autoregressive model, on texts that the model has written itself."""
