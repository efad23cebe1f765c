"""Running probes: one target, a session of several, a sweep in worker processes, the gate and the
self-test.
"""
