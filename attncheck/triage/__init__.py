"""Shape right, output wrong: from what a reporter saw to what it is."""
