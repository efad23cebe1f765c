"""What can be wrong in a port: each edit changes one part of a decoder and has a name and words."""
