"""The embedded engine: what touches a model on one machine. Needs torch and transformers."""
