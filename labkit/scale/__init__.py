"""How a command scales: its metric on 1, 2, 4 … nodes of a network in a box, over wires of several rates.

`measure` takes turns and has the efficiencies, with their intervals; `report` says in words and a table where it
breaks; `picture` draws it, and `run` is all of them together: `lab scale`.
"""
