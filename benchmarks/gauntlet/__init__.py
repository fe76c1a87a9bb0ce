"""Real training, struck by the faults that training meets, with the whole switch around it."""
