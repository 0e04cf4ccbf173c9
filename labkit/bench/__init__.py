"""The benchmark: how many images a second a network trains on, or classifies, on these cores.

`python -m labkit.bench` measures in one process; it needs TensorFlow and numpy alone, so it runs in every environment
of the kit. `labkit.bench.configurations` compares configurations, each in processes of its own.
"""
