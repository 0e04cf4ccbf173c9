"""Which settings make a command fastest? A program looks for them, so that nobody has to try by hand.

`space` says which knobs there are, `trial` measures the command with some of their values, `search` chooses what to try
next, `report` tells what came of it, and `run` is all of them together: `lab tune`.
"""
