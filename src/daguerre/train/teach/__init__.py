"""A frozen autoregressive model as the teacher of one that learns to fill masks."""
