"""The faults that can be injected and recognised, one per file; `registry` lists them."""
