"""What is kept of a run, and how it is shown. A renderer gets nothing that a saved JSON does not
hold.
"""
