"""One server for all: a JupyterHub of this environment, with seats, limits and the room's board."""
