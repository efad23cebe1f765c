"""The catalogue of faults: what each looks like, how it is planted, what the logits would be with
exactly it.
"""
