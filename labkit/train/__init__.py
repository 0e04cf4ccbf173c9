"""The program of lab 08, which trains ResNet-50 on many ranks: its recipe, its log, its checkpoints."""
