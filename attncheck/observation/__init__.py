"""What the attention of a failing forward was given and gave, what differs from the trusted path,
and the proof that exactly this makes the wrong logits.
"""
