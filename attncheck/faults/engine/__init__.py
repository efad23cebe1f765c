"""What every fault is built from: injection into a model, the trusted path, hypotheses."""
