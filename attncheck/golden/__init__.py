"""A small recording of a model, and the gate that holds a later version of the model against it."""
