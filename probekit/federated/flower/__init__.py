"""Questions and answers over Flower: its SuperLink and SuperNodes carry the bytes, and run none of its apps."""
