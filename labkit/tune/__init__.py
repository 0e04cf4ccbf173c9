"""Search for the settings with which a command runs fastest.

`space` reads the knobs, `trial` measures the command with some of their values, `search` chooses what to try next with
a Gaussian process, `report` writes and plots the results, and `run` confirms the best and makes all this `lab tune`.
"""
