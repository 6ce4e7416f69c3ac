"""Transactions: durable runs of pipelines, of which every transition is one script of one cell."""
