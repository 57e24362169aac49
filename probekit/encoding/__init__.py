"""From a data set, a backbone and a store to an embedding set."""
