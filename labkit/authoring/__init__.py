"""From a lab's source to its notebooks: build, lint, execute."""
