"""cat and cat.out."""
