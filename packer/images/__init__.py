"""One image: what it really is, and what is stored of it."""
