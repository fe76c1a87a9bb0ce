"""How long it takes from a faulty step to the trainer having acted, through the real stack."""
