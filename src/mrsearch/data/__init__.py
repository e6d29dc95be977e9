"""Question sets, the mini world and its demonstrations. Knows nothing of models, and loads no torch."""
