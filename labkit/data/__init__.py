"""What the labs read: handwritten digits, photos, and images in ImageNet's layout, synthetic ones among them."""
