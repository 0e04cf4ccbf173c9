"""The small scripts that the doctor tries. Each also runs by hand, as its first line says."""
