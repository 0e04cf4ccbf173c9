"""How is ResNet-50 trained on many ranks? The program of lab 08: its data, its recipe, its log, its checkpoints."""
