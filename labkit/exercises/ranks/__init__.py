"""Code that runs in students' processes: on each rank, next to their script."""
