"""What this machine does at most: matrix products in several number formats, and memory bandwidth."""
