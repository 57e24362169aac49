"""Networks in torch: linearized by Jacobian products, or trained as they are."""
