"""What attncheck costs, measured: `make bench` runs every part and prints one table."""
