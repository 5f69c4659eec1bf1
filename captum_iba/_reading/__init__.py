"""How a result is read: the order of its parts, what a check says of them, and the sentences that say it."""
