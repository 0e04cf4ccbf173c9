"""The networks of the labs, each once."""
