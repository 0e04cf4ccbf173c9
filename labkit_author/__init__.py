"""Make, lint, execute and test the labs' notebooks, which come from one source each."""
