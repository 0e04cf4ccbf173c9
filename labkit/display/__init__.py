"""Notebook output: plots, TensorFlow graphs, oneDNN logs, closing tables and verdicts."""
