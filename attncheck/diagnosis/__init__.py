"""What a failure is: which fault reproduces it, where it starts, and a script that shows it to
somebody.
"""
