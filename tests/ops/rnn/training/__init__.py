"""Training of recurrent layers."""
