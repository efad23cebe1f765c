"""The report of a run and how it is shown. A renderer reads nothing that a saved JSON lacks."""
