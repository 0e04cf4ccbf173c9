"""The base layer of the kit: the machine, processes, files, errors, progress, statistics.

Nothing here imports another package of the kit, and most modules need only the standard library: the benchmark runs in
an environment that has just TensorFlow and NumPy.
"""
