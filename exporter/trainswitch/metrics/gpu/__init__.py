"""What the NVIDIA driver knows of the cards that a rank uses."""
