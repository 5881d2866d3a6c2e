"""Price books, their dated versions, and the prices in them."""
