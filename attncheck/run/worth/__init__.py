"""What each question of a probe is worth: the faults that it catches, and the forwards it costs."""
