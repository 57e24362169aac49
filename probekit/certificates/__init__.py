"""What is proven of an unlearned head, and how somebody else checks it."""
