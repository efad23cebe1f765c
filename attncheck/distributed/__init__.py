"""Models that several processes run together: ranks and timeouts."""
