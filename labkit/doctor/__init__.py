"""Whether this machine can run each lab, and what to do if not: `lab doctor`."""
