"""What a reference computes as a list of operators, edited until another model comes out."""
