"""Corpus and retrievers: reading passages, finding them, remembering what was found. Knows nothing of episodes."""
