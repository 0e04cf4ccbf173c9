"""Which small scripts does the doctor try? Each also runs by hand, as its first line says."""
