"""Models that several processes run together: ranks, timeouts, sharded loading, and what sharding
changed.
"""
