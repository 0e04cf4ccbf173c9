"""The ground of the kit: the machine, its processes, files, errors, progress, statistics.

Nothing here imports another room of the kit, and most of it nothing but the standard library: the benchmark runs in an
environment with TensorFlow and numpy alone.
"""
