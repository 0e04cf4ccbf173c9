"""The benchmark: the images per second that a network trains on, on these cores.

`python -m labkit.bench` measures in one process, with TensorFlow or PyTorch. `labkit.bench.configurations`
compares configurations, each in its own processes.
"""
