"""The search for the settings with which a command is fastest.

`space` reads which knobs there are, `trial` measures the command with some of their values, `search` chooses what to
try next, by a `gaussian_process`; `report` confirms, writes and draws the result, and `run` is all of them together:
`lab tune`.
"""
