"""How good a head is: metrics, few-shot curves, backdoors, membership inference."""
