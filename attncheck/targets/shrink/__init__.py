"""Small configs of any architecture: sizes cut by the names of the fields, one layer of each kind,
boundaries within reach.
"""
