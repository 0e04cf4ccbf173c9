"""Lab 08's training program, for ResNet-50 on many ranks: recipe, log and checkpoints."""
