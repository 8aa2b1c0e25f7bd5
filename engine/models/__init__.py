"""Model code of our own, one class per family of architectures."""
