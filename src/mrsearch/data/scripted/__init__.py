"""Demonstrations from real questions, by a scripted, imperfect searcher that searches a real corpus."""
