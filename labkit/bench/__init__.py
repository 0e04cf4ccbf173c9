"""The benchmark: the images per second that a network trains on, or classifies, on these cores.

`python -m labkit.bench` measures in one process, with TensorFlow or PyTorch; it needs one of these and numpy, so it
runs in every environment of the kit. `labkit.bench.configurations` compares configurations, each in its own processes.
"""
