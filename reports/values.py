"""Values of JSON that others have written, as `evaluation.values` reads them."""

from evaluation.values import at, estimate_of, items, listed, number, number_in, share_of

__all__ = ["at", "estimate_of", "items", "listed", "number", "number_in", "share_of"]
