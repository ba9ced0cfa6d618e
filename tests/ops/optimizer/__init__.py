"""The fused steps of optimizers, and the step counters that they add to."""
