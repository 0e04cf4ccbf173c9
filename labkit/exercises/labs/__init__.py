"""One module per lab: its exercises as data for the engine."""
