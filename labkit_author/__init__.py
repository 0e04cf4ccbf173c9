"""Tools for authors: build, lint, execute and test the labs' notebooks. Each lab has one source."""
