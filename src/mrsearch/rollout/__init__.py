"""Drivers of the meta-episode machine. None of them knows what an episode is."""
