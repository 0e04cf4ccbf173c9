"""This machine's limits: peak matmul speed by dtype, and memory bandwidth."""
