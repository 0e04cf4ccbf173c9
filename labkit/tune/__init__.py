"""Search for the settings with which a command runs fastest.

`space` reads the knobs, `trial` measures the command with some of their values, `search` chooses what to try next with
a `gaussian_process`, `report` confirms, writes and plots the result, and `run` combines them into `lab tune`.
"""
