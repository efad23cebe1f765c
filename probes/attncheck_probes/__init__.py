"""The probes that come with attncheck, through the same door as anyone's: the entry-point group
`attncheck.probes`.
"""
