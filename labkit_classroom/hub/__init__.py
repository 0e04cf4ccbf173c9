"""One server for all: a JupyterHub with seats, accounts, limits and codes."""
