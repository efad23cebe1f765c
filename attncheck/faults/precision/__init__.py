"""What is wrong because of a narrow dtype."""
