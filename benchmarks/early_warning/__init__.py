"""How long before the loss breaks a creeping learning rate is warned of, on runs that are really trained."""
