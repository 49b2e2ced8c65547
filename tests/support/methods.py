"""What tests allow some step rules."""

SLOW = {"fw", "partan"}
"""Methods whose iterations grow tenfold with each decade of the tolerance."""

NOT_LAZY = {"partan", "corrective"}
"""Methods that the lazy oracle does not go with."""
