"""The judge: each attention layer held to what its config promises."""
