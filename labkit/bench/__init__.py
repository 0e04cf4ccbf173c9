"""The benchmark: images per second that a network trains on, or classifies, on these cores.

`python -m labkit.bench` measures in one process, with TensorFlow or PyTorch. `labkit.bench.configurations`
compares configurations, each in its own processes.
"""
