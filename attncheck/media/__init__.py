"""The questions of the probes, asked of rows with pictures and sounds in them."""
