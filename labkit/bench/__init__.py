"""How many images a second does a network train on, or classify, on these cores?

`python -m labkit.bench` measures in one process; it needs TensorFlow and numpy alone, so it runs in every environment
of the kit. `labkit.bench.setups` compares set-ups, each in processes of its own.
"""
