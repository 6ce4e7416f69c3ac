"""Delivery: every HTTP request that leaves the product. Safe, signed, patient, fair."""
