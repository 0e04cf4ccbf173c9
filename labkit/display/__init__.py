"""What the labs show: pictures, TensorFlow's graphs, oneDNN's log, and the closing tables."""
