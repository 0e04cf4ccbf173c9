"""One server for the class: a JupyterHub with seats, accounts, limits and codes."""
