"""What the explainers of texts, prompts and images have in common."""
