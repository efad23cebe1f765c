"""A decoder written out as plain arithmetic with parameters, read from a model by effect."""
