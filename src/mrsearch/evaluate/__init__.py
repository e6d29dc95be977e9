"""How well an agent does: scores of meta-episodes, their summaries, runs over question sets."""
